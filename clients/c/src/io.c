/* SPDX-License-Identifier: Apache-2.0 */

/* Prepare, submit, wait. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fdtable.h"
#include "ring.h"
#include "submitsem.h"

#define NSEC_PER_MSEC 1000000L
#define NSEC_PER_SEC 1000000000L

static struct usrbio_ring *ring_of(const struct hf3fs_ior *ior) { return ior == NULL ? NULL : ior->iorh; }

int hf3fs_prep_io(const struct hf3fs_ior *ior,
                  const struct hf3fs_iov *iov,
                  bool read,
                  void *ptr,
                  int fd,
                  size_t off,
                  uint64_t len,
                  const void *userdata) {
  struct usrbio_ring *ring = ring_of(ior);
  if (ring == NULL || read != ring->for_read || iov == NULL || iov->base == NULL || len == 0) {
    return -EINVAL;
  }
  uintptr_t at = (uintptr_t)ptr;
  uintptr_t base = (uintptr_t)iov->base;
  if (at < base || at - base > iov->size || len > iov->size - (at - base)) {
    return -EINVAL;
  }
  struct usrbio_file file;
  int err = usrbio_fdtable_find(fd, &file);
  if (err != 0) {
    return err;
  }
  /* The daemon does not know how the file was opened, so this is the only check. */
  if (file.access_mode == (read ? O_WRONLY : O_RDONLY)) {
    return -EACCES;
  }
  struct usrbio_args args = {
      .buf_off = at - base,
      .file_ino = file.ino,
      .file_off = off,
      .len = len,
      .userdata = (uint64_t)(uintptr_t)userdata,
  };
  memcpy(args.buf_id, iov->id, sizeof(args.buf_id));
  return usrbio_ring_push(ring, &args);
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior) {
  struct usrbio_ring *ring = ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  usrbio_submitsem_post(ring->submit_sem);
  return 0;
}

/* How long a lost post of the daemon can go unnoticed. Read at each wait that has to sleep. */
static long jitter_ms(void) {
  const char *setting = getenv("HF3FS_USRBIO_WAIT_JITTER_MS");
  long ms = setting == NULL ? 0 : strtol(setting, NULL, 10);
  return ms > 0 && ms <= INT_MAX ? ms : 1;
}

static bool before(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static struct timespec after_ms(struct timespec t, long ms) {
  t.tv_sec += ms / 1000;
  t.tv_nsec += ms % 1000 * NSEC_PER_MSEC;
  if (t.tv_nsec >= NSEC_PER_SEC) {
    t.tv_sec++;
    t.tv_nsec -= NSEC_PER_SEC;
  }
  return t;
}

static void spin(const struct usrbio_ring *ring, uint64_t until_ns) {
  do {
    for (int i = 0; i < 16; i++) {
      if (usrbio_ring_ready(ring)) {
        return;
      }
      usrbio_relax();
    }
  } while (usrbio_now_ns() < until_ns);
}

/* Returns false if the deadline has passed. Whatever ends the pause, the caller checks the ring again. */
static bool pause_for_completions(struct usrbio_ring *ring,
                                  struct usrbio_wait *wait,
                                  int collected,
                                  const struct timespec *deadline,
                                  long *jitter) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (deadline != NULL && !before(&now, deadline)) {
    return false;
  }
  uint64_t now_ns = usrbio_now_ns();
  if (wait->began_ns == 0) {
    usrbio_wait_begin(&ring->pace, wait, now_ns, collected);
  }
  if (wait->spins && now_ns < usrbio_spin_end_ns(wait)) {
    spin(ring, usrbio_spin_end_ns(wait));
    return true;
  }
  if (*jitter == 0) {
    *jitter = jitter_ms();
  }
  struct timespec until = after_ms(now, *jitter);
  if (deadline != NULL && before(deadline, &until)) {
    until = *deadline;
    /* With nanoseconds out of range every wait would fail at once. */
    until.tv_nsec = until.tv_nsec < 0 ? 0 : until.tv_nsec >= NSEC_PER_SEC ? NSEC_PER_SEC - 1 : until.tv_nsec;
  }
  usrbio_ring_sleep(ring, &until);
  return true;
}

static int collect(struct usrbio_ring *ring,
                   struct hf3fs_cqe *cqes,
                   int cqec,
                   int min_results,
                   const struct timespec *abs_timeout,
                   struct usrbio_wait *wait) {
  int collected = 0;
  long jitter = 0;
  for (;;) {
    bool held_back;
    int n = usrbio_ring_reap(ring, cqes + collected, cqec - collected, &held_back);
    if (n < 0) {
      return collected > 0 ? collected : n;
    }
    if (held_back) {
      usrbio_submitsem_post(ring->submit_sem);
    }
    collected += n;
    if (collected == cqec) {
      return collected;
    }
    if (n > 0) {
      continue;
    }
    if (collected >= min_results || !pause_for_completions(ring, wait, collected, abs_timeout, &jitter)) {
      return collected;
    }
  }
}

int hf3fs_wait_for_ios(const struct hf3fs_ior *ior,
                       struct hf3fs_cqe *cqes,
                       int cqec,
                       int min_results,
                       const struct timespec *abs_timeout) {
  struct usrbio_ring *ring = ring_of(ior);
  if (ring == NULL || cqes == NULL || cqec <= 0) {
    return -EINVAL;
  }
  struct usrbio_wait wait = {0};
  usrbio_ring_drop_old_posts(ring);
  int collected = collect(ring, cqes, cqec, min_results < cqec ? min_results : cqec, abs_timeout, &wait);
  if (wait.began_ns != 0) {
    usrbio_wait_end(&ring->pace, &wait, usrbio_now_ns(), collected);
  }
  usrbio_ring_pass_on(ring);
  return collected;
}
