/* SPDX-License-Identifier: Apache-2.0 */

#include "registration.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "linkname.h"
#include "livedir.h"
#include "log.h"

#define SHM_DIR "/dev/shm"
#define SHM_NAME_BYTES (sizeof("/hf3fs-iov-") + USRBIO_UUID_TEXT_BYTES)

struct usrbio_registration {
  uint8_t *base;
  size_t size_bytes;
  uint8_t id[16];
  char shm_name[SHM_NAME_BYTES]; /* empty if already unlinked, or not ours to unlink */
  char link[USRBIO_PATH_BYTES];
};

/*
 * Preferred, not bound: a full node then costs speed but no SIGBUS. It is not an error if the hint cannot
 * be followed (no such node, no NUMA, seccomp).
 */
static void prefer_node(void *base, size_t size_bytes, int numa) {
  enum { MODE_PREFERRED = 1, MASK_WORDS = 16, BITS = 64 };
  unsigned long mask[MASK_WORDS] = {0};
  if (numa < 0 || numa >= MASK_WORDS * BITS) {
    return;
  }
  mask[numa / BITS] = 1UL << (numa % BITS);
  if (syscall(SYS_mbind, base, size_bytes, MODE_PREFERRED, mask, (unsigned long)(MASK_WORDS * BITS), 0UL) != 0) {
    usrbio_log(USRBIO_INFO, "numa node %d is ignored: %s", numa, strerror(errno));
  }
}

static int map(struct usrbio_registration *r, int fd, size_t size_bytes, int numa) {
  void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    usrbio_log(USRBIO_ERROR, "map %zu bytes of shared memory: %s", size_bytes, strerror(errno));
    return -EIO;
  }
  r->base = base;
  r->size_bytes = size_bytes;
  prefer_node(base, size_bytes, numa);
  return 0;
}

static int create_shm(struct usrbio_registration *r, size_t size_bytes, int numa) {
  uint8_t uuid[16];
  char text[USRBIO_UUID_TEXT_BYTES];
  if (size_bytes > SSIZE_MAX || usrbio_uuid_new(uuid) != 0) {
    return -EIO;
  }
  usrbio_uuid_text(uuid, text);
  snprintf(r->shm_name, sizeof(r->shm_name), "/hf3fs-iov-%s", text);
  int fd = shm_open(r->shm_name, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (fd < 0) {
    usrbio_log(USRBIO_ERROR, "create %s%s: %s", SHM_DIR, r->shm_name, strerror(errno));
    r->shm_name[0] = '\0';
    return -EIO;
  }
  int err;
  /* Exactly this size: both sides derive the ring's geometry from it. */
  if (ftruncate(fd, (off_t)size_bytes) != 0) {
    usrbio_log(USRBIO_ERROR, "resize %s%s: %s", SHM_DIR, r->shm_name, strerror(errno));
    err = -EIO;
  } else {
    err = map(r, fd, size_bytes, numa);
  }
  close(fd);
  return err;
}

static void release_memory(struct usrbio_registration *r) {
  usrbio_registration_unlink_shm(r);
  if (r->base != NULL) {
    munmap(r->base, r->size_bytes);
  }
  free(r);
}

static void name_link(struct usrbio_registration *r, const char *mount, const char *suffix) {
  char name[USRBIO_UUID_TEXT_BYTES + USRBIO_SUFFIX_BYTES];
  usrbio_uuid_text(r->id, name);
  strcat(name, suffix);
  usrbio_iovs_path(r->link, mount, name);
}

/* A FUSE daemon may return EINTR when a signal arrives, even after it has carried out the call. */
static int link_name(const char *target, const char *path) {
  if (symlink(target, path) == 0) {
    return 0;
  }
  while (errno == EINTR) {
    if (symlink(target, path) == 0 || errno == EEXIST) {
      return 0;
    }
  }
  return -errno;
}

static int unlink_name(const char *path) {
  while (unlink(path) != 0) {
    if (errno != EINTR) {
      return -errno;
    }
  }
  return 0;
}

int usrbio_registration_create(const char *mount,
                               const char *suffix,
                               size_t size_bytes,
                               int numa,
                               struct usrbio_registration **out) {
  struct usrbio_registration *r = calloc(1, sizeof(*r));
  if (r == NULL) {
    return -ENOMEM;
  }
  /* The id differs from the uuid in the shm name: the name of a file in /dev/shm must not reveal the id. */
  int err = usrbio_uuid_new(r->id);
  if (err == 0) {
    err = create_shm(r, size_bytes, numa);
  }
  if (err != 0) {
    release_memory(r);
    return err;
  }
  name_link(r, mount, suffix);
  char target[sizeof(SHM_DIR) + SHM_NAME_BYTES];
  snprintf(target, sizeof(target), SHM_DIR "%s", r->shm_name);
  err = link_name(target, r->link);
  if (err != 0) {
    usrbio_log(USRBIO_ERROR, "register %s: %s", r->link, strerror(-err));
    release_memory(r);
    return err;
  }
  usrbio_livedir_hold(mount);
  *out = r;
  return 0;
}

int usrbio_registration_open(const char *mount,
                             const uint8_t id[16],
                             const char *suffix,
                             size_t size_bytes,
                             int numa,
                             struct usrbio_registration **out) {
  struct usrbio_registration *r = calloc(1, sizeof(*r));
  if (r == NULL) {
    return -ENOMEM;
  }
  memcpy(r->id, id, sizeof(r->id));
  name_link(r, mount, suffix);

  char target[PATH_MAX];
  if (realpath(r->link, target) == NULL) {
    int err = -errno;
    release_memory(r);
    return err;
  }
  int err = 0;
  if (strncmp(target, SHM_DIR "/", sizeof(SHM_DIR)) != 0) {
    err = -EINVAL;
  }
  int fd = -1;
  if (err == 0 && (fd = shm_open(target + strlen(SHM_DIR), O_RDWR, 0)) < 0) {
    usrbio_log(USRBIO_ERROR, "open %s: %s", target, strerror(errno));
    err = -EIO;
  }
  struct stat st;
  if (err == 0 && fstat(fd, &st) != 0) {
    err = -EIO;
  }
  /* Pages beyond the object would be a SIGBUS on first use. */
  if (err == 0 && (st.st_size < 0 || size_bytes > (size_t)st.st_size)) {
    err = -EINVAL;
  }
  if (err == 0) {
    err = map(r, fd, size_bytes, numa);
  }
  if (fd >= 0) {
    close(fd);
  }
  if (err != 0) {
    release_memory(r);
    return err;
  }
  *out = r;
  return 0;
}

void usrbio_registration_unlink_shm(struct usrbio_registration *r) {
  if (r->shm_name[0] == '\0') {
    return;
  }
  if (shm_unlink(r->shm_name) != 0 && errno != ENOENT) {
    usrbio_log(USRBIO_WARN, "remove %s%s: %s", SHM_DIR, r->shm_name, strerror(errno));
  }
  r->shm_name[0] = '\0';
}

void usrbio_registration_destroy(struct usrbio_registration *r) {
  /* ENOENT: a process that opened it has removed it. ENOTCONN: the daemon and its registrations are gone. */
  int err = unlink_name(r->link);
  if (err != 0 && err != -ENOENT && err != -ENOTCONN) {
    usrbio_log(USRBIO_WARN, "deregister %s: %s", r->link, strerror(-err));
  }
  release_memory(r);
}

uint8_t *usrbio_registration_base(const struct usrbio_registration *r) { return r->base; }

const uint8_t *usrbio_registration_id(const struct usrbio_registration *r) { return r->id; }
