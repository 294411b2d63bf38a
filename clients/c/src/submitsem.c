/* SPDX-License-Identifier: Apache-2.0 */

#include "submitsem.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "linkname.h"
#include "log.h"

#define PREFIX "/dev/shm/sem."

static int reject(const char *path, const char *target) {
  usrbio_log(USRBIO_ERROR, "%s leads to %s, which is not a semaphore", path, target);
  return -EIO;
}

int usrbio_submitsem_open(const char *mount, int priority, sem_t **out) {
  char path[USRBIO_PATH_BYTES];
  usrbio_iovs_path(path, mount, priority < 0 ? "submit-ios.ph" : priority > 0 ? "submit-ios.pl" : "submit-ios");

  char target[256];
  ssize_t len = readlink(path, target, sizeof(target));
  if (len < 0) {
    int err = -errno;
    usrbio_log(USRBIO_ERROR, "read %s: %s", path, strerror(-err));
    return err;
  }
  if ((size_t)len >= sizeof(target)) {
    target[sizeof(target) - 1] = '\0';
    return reject(path, target);
  }
  target[len] = '\0';
  const char *name = target + strlen(PREFIX);
  if (strncmp(target, PREFIX, strlen(PREFIX)) != 0 || *name == '\0' || strchr(name, '/') != NULL) {
    return reject(path, target);
  }

  char sem_name[sizeof(target)];
  sem_name[0] = '/';
  strcpy(sem_name + 1, name);
  sem_t *sem = sem_open(sem_name, 0);
  if (sem == SEM_FAILED) {
    int err = -errno;
    /* Usually the cause is that we do not share /dev/shm with the daemon. */
    usrbio_log(USRBIO_ERROR, "open semaphore %s: %s", target, strerror(-err));
    return err;
  }
  *out = sem;
  return 0;
}

/* glibc's sem_t on 64-bit systems: the value is the first word on little-endian ones. */
_Static_assert(sizeof(void *) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the layout of sem_t");

void usrbio_submitsem_post(sem_t *sem) {
  /* Adds 1 to the value and wakes a waiter. The comparison would wake a second one: never, for valid values. */
  syscall(SYS_futex, sem, FUTEX_WAKE_OP, 1, NULL, sem, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_LT, 0));
}
