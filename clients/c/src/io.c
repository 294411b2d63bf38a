/* SPDX-License-Identifier: Apache-2.0 */

/* Prepare, submit, wait. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fdtable.h"
#include "registration.h"
#include "ring.h"
#include "submitsem.h"

#define NS_PER_MS UINT64_C(1000000)

struct usrbio_ring *usrbio_ring_of(const struct hf3fs_ior *ior) {
  struct usrbio_ring *ring = ior == NULL ? NULL : __atomic_load_n(&ior->iorh, __ATOMIC_ACQUIRE);
  if (ring == NULL || !usrbio_ring_enter(ring)) {
    return NULL;
  }
  if (__atomic_load_n(&ior->iorh, __ATOMIC_ACQUIRE) != ring) { /* destroyed in between, and maybe already another one */
    usrbio_ring_leave(ring);
    return NULL;
  }
  return ring;
}

static int prepare(struct usrbio_ring *ring,
                   const struct hf3fs_iov *iov,
                   bool read,
                   void *ptr,
                   int fd,
                   size_t off,
                   uint64_t len,
                   const void *userdata) {
  if (read != ring->for_read || iov == NULL || iov->base == NULL || len == 0) {
    return -EINVAL;
  }
  uintptr_t at = (uintptr_t)ptr;
  uintptr_t base = (uintptr_t)iov->base;
  if (at < base || at - base > iov->size || len > iov->size - (at - base)) {
    return -EINVAL;
  }
  if (!usrbio_ring_ours(ring)) {
    return -EBUSY;
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

int hf3fs_prep_io(const struct hf3fs_ior *ior,
                  const struct hf3fs_iov *iov,
                  bool read,
                  void *ptr,
                  int fd,
                  size_t off,
                  uint64_t len,
                  const void *userdata) {
  struct usrbio_ring *ring = usrbio_ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  int index = prepare(ring, iov, read, ptr, fd, off, len, userdata);
  usrbio_ring_leave(ring);
  return index;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior) {
  struct usrbio_ring *ring = usrbio_ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  bool ours = usrbio_ring_ours(ring);
  if (ours) {
    usrbio_submitsem_post(ring->submit_sem);
  }
  usrbio_ring_leave(ring);
  return ours ? 0 : -EBUSY;
}

#define LEAST_NAP_MS 1
#define MOST_NAP_MS 64
#define LOOK_EVERY_NS (1000 * NS_PER_MS)

/* What one call of hf3fs_wait_for_ios knows; all zero until it finds nothing to collect. */
struct waiting {
  struct usrbio_wait pace;
  const struct timespec *abs_timeout; /* of CLOCK_REALTIME, null: none */
  uint64_t deadline_ns;               /* the same, of CLOCK_MONOTONIC, so that setting the clock does not move it */
  uint64_t look_ns;                   /* when to look whether the daemon lives; UINT64_MAX: never */
  long jitter_ms;                     /* 0: not set */
};

static uint64_t deadline_of(const struct timespec *abs_timeout, uint64_t now_ns) {
  struct timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  /* Nanoseconds out of range count as the nearest that is in range. */
  long nsec = abs_timeout->tv_nsec < 0 ? 0 : abs_timeout->tv_nsec > 999999999 ? 999999999 : abs_timeout->tv_nsec;
  if (abs_timeout->tv_sec < real.tv_sec) {
    return now_ns;
  }
  uint64_t seconds = (uint64_t)abs_timeout->tv_sec - (uint64_t)real.tv_sec;
  const uint64_t for_ever = UINT64_C(1) << 31;
  int64_t left = (int64_t)(seconds < for_ever ? seconds : for_ever) * 1000000000 + nsec - real.tv_nsec;
  return left > 0 ? now_ns + (uint64_t)left : now_ns;
}

static void begin_waiting(struct usrbio_ring *ring, struct waiting *w, uint64_t now_ns, int collected) {
  usrbio_wait_begin(&ring->pace, &w->pace, now_ns, collected);
  w->deadline_ns = w->abs_timeout == NULL ? UINT64_MAX : deadline_of(w->abs_timeout, now_ns);
  const char *jitter = getenv("HF3FS_USRBIO_WAIT_JITTER_MS");
  long ms = jitter == NULL ? 0 : strtol(jitter, NULL, 10);
  w->jitter_ms = ms > 0 && ms <= INT_MAX ? ms : 0;
  const char *for_ever = getenv("HF3FS_USRBIO_WAIT_FOREVER");
  bool looks = w->abs_timeout == NULL && ring->registration != NULL && (for_ever == NULL || strcmp(for_ever, "yes") != 0);
  w->look_ns = looks ? now_ns + LOOK_EVERY_NS : UINT64_MAX;
}

/*
 * How long a lost post of the daemon can go unnoticed. If nothing else is set, as long as the wait has lasted,
 * within bounds: so waiters to whom nothing comes cost next to nothing.
 */
static uint64_t nap_ns(const struct waiting *w, uint64_t now_ns) {
  if (w->jitter_ms > 0) {
    return (uint64_t)w->jitter_ms * NS_PER_MS;
  }
  uint64_t took = now_ns - w->pace.began_ns;
  return took < LEAST_NAP_MS * NS_PER_MS ? LEAST_NAP_MS * NS_PER_MS : took < MOST_NAP_MS * NS_PER_MS ? took : MOST_NAP_MS * NS_PER_MS;
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

/*
 * Returns 1 if the deadline has passed, a negated errno if nothing can come any more. Whatever ends the pause,
 * the caller checks the ring again.
 */
static int pause_for_completions(struct usrbio_ring *ring, struct waiting *w, int collected, int missing) {
  uint64_t now_ns = usrbio_now_ns();
  if (w->pace.began_ns == 0) {
    begin_waiting(ring, w, now_ns, collected);
  }
  if (usrbio_ring_closed(ring)) {
    return -EINVAL;
  }
  if (now_ns >= w->deadline_ns) {
    return 1;
  }
  uint64_t spin_end_ns = usrbio_spin_end_ns(&w->pace, now_ns, collected);
  if (now_ns < spin_end_ns) {
    spin(ring, spin_end_ns);
    return 0;
  }
  if (now_ns >= w->look_ns) {
    if (usrbio_registration_lost(ring->registration) && !usrbio_ring_may_be_served(ring)) {
      return -ENOTCONN;
    }
    w->look_ns = now_ns + LOOK_EVERY_NS;
  }
  uint64_t until_ns = now_ns + nap_ns(w, now_ns);
  usrbio_ring_sleep(ring, (uint32_t)missing, until_ns < w->deadline_ns ? until_ns : w->deadline_ns);
  return 0;
}

static int collect(struct usrbio_ring *ring, struct hf3fs_cqe *cqes, int cqec, int min_results, struct waiting *w) {
  int collected = 0;
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
    if (collected >= min_results) {
      return collected;
    }
    int end = pause_for_completions(ring, w, collected, min_results - collected);
    if (end != 0) {
      return end > 0 || collected > 0 ? collected : end;
    }
  }
}

static int wait(struct usrbio_ring *ring, struct hf3fs_cqe *cqes, int cqec, int min_results, const struct timespec *abs_timeout) {
  if (!usrbio_ring_ours(ring)) {
    return -EBUSY;
  }
  struct waiting w = {.abs_timeout = abs_timeout};
  usrbio_ring_drop_old_posts(ring);
  int collected = collect(ring, cqes, cqec, min_results < cqec ? min_results : cqec, &w);
  if (w.pace.began_ns != 0) {
    usrbio_wait_end(&ring->pace, &w.pace, usrbio_now_ns(), collected);
  }
  usrbio_ring_pass_on(ring);
  return collected;
}

int hf3fs_wait_for_ios(const struct hf3fs_ior *ior,
                       struct hf3fs_cqe *cqes,
                       int cqec,
                       int min_results,
                       const struct timespec *abs_timeout) {
  struct usrbio_ring *ring = cqes == NULL || cqec <= 0 ? NULL : usrbio_ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  int collected = wait(ring, cqes, cqec, min_results, abs_timeout);
  usrbio_ring_leave(ring);
  return collected;
}
