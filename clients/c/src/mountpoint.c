/* SPDX-License-Identifier: Apache-2.0 */

#include "mountpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "hf3fs_usrbio.h"
#include "log.h"
#include "oldglibc.h"

#define VIRT "3fs-virt"

/* Undoes the kernel's \ooo escapes of space, tab, newline and backslash. */
static void unescape(char *text) {
  char *to = text;
  for (const char *from = text; *from != '\0'; to++) {
    if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' && from[3] >= '0' &&
        from[3] <= '7') {
      *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
      from += 4;
    } else {
      *to = *from++;
    }
  }
  *to = '\0';
}

/* /mnt/3fs contains /mnt/3fs/a, but not /mnt/3fs2. */
static bool contains(const char *dir, const char *path) {
  size_t len = strlen(dir);
  if (strcmp(dir, "/") == 0) {
    return path[0] == '/';
  }
  return strncmp(dir, path, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* Splits line in place, into mount point (field 5) and type (third from the end). Returns false if it is no mount. */
static bool split(char *line, char **mount, char **type) {
  char *last[3] = {NULL, NULL, NULL};
  int count = 0;
  char *rest = NULL;
  for (char *f = strtok_r(line, " \n", &rest); f != NULL; f = strtok_r(NULL, " \n", &rest), count++) {
    if (count == 4) {
      *mount = f;
    }
    last[0] = last[1];
    last[1] = last[2];
    last[2] = f;
  }
  *type = last[0];
  return count >= 10;
}

/* A container may bind-mount 3fs-virt separately, beside the directory it needs: then its parent is the mount. */
static bool strip_virt(char *mount) {
  char *slash = strrchr(mount, '/');
  if (slash == NULL || strcmp(slash + 1, VIRT) != 0) {
    return false;
  }
  slash[slash == mount ? 1 : 0] = '\0';
  return true;
}

char *usrbio_mountpoint_find(FILE *mountinfo, const char *path, bool any_type, bool (*has_virt)(const char *mount)) {
  char *best = NULL;
  char *line = NULL;
  size_t capacity = 0;
  while (getline(&line, &capacity, mountinfo) > 0) {
    char *mount = NULL;
    char *type = NULL;
    if (!split(line, &mount, &type) || (!any_type && strcmp(type, "fuse.hf3fs") != 0)) {
      continue;
    }
    unescape(mount);
    bool is_virt = strip_virt(mount);
    /* Of several mounts that contain the path, the one with the longest name is the deepest. */
    if (!contains(mount, path) || (best != NULL && strlen(mount) <= strlen(best))) {
      continue;
    }
    if (is_virt || has_virt(mount)) {
      char *copy = strdup(mount);
      if (copy != NULL) {
        free(best);
        best = copy;
      }
    }
  }
  free(line);
  return best;
}

static bool shows_virt(const char *mount) {
  char *path = malloc(strlen(mount) + sizeof("/" VIRT));
  if (path == NULL) {
    return false;
  }
  struct stat st;
  strcpy(path, mount);
  strcat(path, "/" VIRT);
  bool found = usrbio_stat(path, &st) == 0;
  free(path);
  return found;
}

int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path) {
  if (path == NULL) {
    errno = EINVAL;
    return -1;
  }
  char *canonical = realpath(path, NULL);
  if (canonical == NULL) {
    return -1;
  }
  FILE *mountinfo = fopen("/proc/self/mountinfo", "re");
  if (mountinfo == NULL) {
    usrbio_log(USRBIO_ERROR, "open /proc/self/mountinfo: %s", strerror(errno));
    free(canonical);
    return -1;
  }
  const char *setting = getenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP");
  bool any_type = setting != NULL && strcmp(setting, "yes") == 0;
  char *mount = usrbio_mountpoint_find(mountinfo, canonical, any_type, shows_virt);
  fclose(mountinfo);
  free(canonical);
  if (mount == NULL) {
    errno = ENOENT;
    return -1;
  }
  size_t len = strlen(mount);
  if (size > 0 && len < (size_t)size && hf3fs_mount_point != NULL) {
    memcpy(hf3fs_mount_point, mount, len + 1);
  }
  free(mount);
  return (int)len + 1;
}
