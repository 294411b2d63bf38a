/* SPDX-License-Identifier: Apache-2.0 */

/* The ioctls of the file system. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "ioctl.h"
#include "oldglibc.h"

#define PUNCH_HOLE_RANGES 1000

struct hardlink_arg {
  uint64_t parent_ino;
  char name[256]; /* 255 in the protocol; the last byte, its padding, ends a name of full length */
};

struct punch_hole_arg {
  int32_t n;
  uint64_t flags;
  uint64_t start[PUNCH_HOLE_RANGES];
  uint64_t end[PUNCH_HOLE_RANGES];
};

_Static_assert(sizeof(struct hardlink_arg) == 264, "hardlink_arg");
_Static_assert(offsetof(struct punch_hole_arg, start) == 16, "punch_hole_arg.start");
_Static_assert(offsetof(struct punch_hole_arg, end) == 8016, "punch_hole_arg.end");
_Static_assert(sizeof(struct punch_hole_arg) == 16016, "punch_hole_arg");

#define GET_MAGIC _IOR('h', 2, uint32_t)
#define HARDLINK _IOW('h', 12, struct hardlink_arg)
#define PUNCH_HOLE _IOW('h', 13, struct punch_hole_arg)

_Static_assert(GET_MAGIC == 0x80046802, "GET_MAGIC");
_Static_assert(HARDLINK == 0x4108680C, "HARDLINK");
_Static_assert(PUNCH_HOLE == 0x7E90680D, "PUNCH_HOLE");

int usrbio_check_hf3fs(int fd) {
  uint32_t magic = 0;
  if (fd >= 0 && ioctl(fd, GET_MAGIC, &magic) != 0) {
    return errno == ENOTCONN || errno == ECONNABORTED ? ENOTCONN : EBADF;
  }
  return magic == HF3FS_SUPER_MAGIC ? 0 : EBADF;
}

bool hf3fs_is_hf3fs(int fd) { return usrbio_check_hf3fs(fd) == 0; }

/* Splits link_name into the attributes of its directory and the name in it. Returns 0 or a positive errno. */
static int locate(const char *link_name, struct stat *parent, const char **name) {
  const char *slash = strrchr(link_name, '/');
  *name = slash == NULL ? link_name : slash + 1;
  size_t name_len = strlen(*name);
  if (name_len == 0) {
    return ENOENT;
  }
  if (name_len > NAME_MAX) {
    return ENAMETOOLONG;
  }
  if (slash == NULL) {
    return usrbio_stat(".", parent) == 0 ? 0 : errno;
  }
  char *dir = strndup(link_name, (size_t)(slash - link_name) + 1); /* with the slash: "/" stays "/" */
  if (dir == NULL) {
    return ENOMEM;
  }
  int err = usrbio_stat(dir, parent) == 0 ? 0 : errno;
  free(dir);
  return err;
}

static int link_open_file(int fd, const char *link_name) {
  struct hardlink_arg arg;
  struct stat parent;
  struct stat target;
  const char *name;
  memset(&arg, 0, sizeof(arg));
  int err = locate(link_name, &parent, &name);
  if (err != 0) {
    return err;
  }
  if (usrbio_fstat(fd, &target) != 0) {
    return errno;
  }
  /* The daemon sees only the parent's inode number, which names another directory on another file system. */
  if (parent.st_dev != target.st_dev) {
    return EXDEV;
  }
  arg.parent_ino = parent.st_ino;
  memcpy(arg.name, name, strlen(name));
  return ioctl(fd, HARDLINK, &arg) == 0 ? 0 : errno;
}

int hf3fs_hardlink(const char *target, const char *link_name) {
  if (target == NULL || link_name == NULL) {
    return EINVAL;
  }
  int fd = open(target, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return errno;
  }
  int err = link_open_file(fd, link_name);
  close(fd);
  return err;
}

int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags) {
  if (n < 0 || n > PUNCH_HOLE_RANGES || (n > 0 && (start == NULL || end == NULL))) {
    return EINVAL;
  }
  struct punch_hole_arg arg;
  memset(&arg, 0, sizeof(arg));
  arg.n = n;
  arg.flags = flags;
  for (int i = 0; i < n; i++) {
    arg.start[i] = start[i];
    arg.end[i] = end[i];
  }
  return ioctl(fd, PUNCH_HOLE, &arg) == 0 ? 0 : errno;
}
