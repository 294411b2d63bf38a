/* SPDX-License-Identifier: Apache-2.0 */

#include "ring.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "futex.h"
#include "log.h"
#include "process.h"
#include "registration.h"
#include "submitsem.h"

#define SLACK_BYTES 4096u /* part of the size from which both sides compute the layout; upstream does not use it */
#define FIXED_BYTES (sizeof(struct usrbio_markers) + sizeof(sem_t) + SLACK_BYTES)
#define SLOT_BYTES (sizeof(struct usrbio_args) + sizeof(struct hf3fs_cqe) + sizeof(struct usrbio_sqe))

_Static_assert(FIXED_BYTES == 4144 && SLOT_BYTES == 96, "ring sizes");

#define MANY_POSTS 256u  /* taking them takes a few microseconds */
#define MOST_POSTS 4096u /* taken at a time: the daemon may post as fast as we take */

size_t usrbio_ring_bytes(int entries) {
  if (entries < 0) {
    return 0;
  }
  return FIXED_BYTES + SLOT_BYTES * ((size_t)entries + 1);
}

bool usrbio_ring_layout(size_t size_bytes, struct usrbio_layout *layout) {
  if (size_bytes < FIXED_BYTES + 2 * SLOT_BYTES) {
    return false;
  }
  size_t ring_len = (size_bytes - FIXED_BYTES) / SLOT_BYTES;
  if (ring_len > INT_MAX) {
    ring_len = INT_MAX;
  }
  layout->ring_len = (uint32_t)ring_len;
  layout->entries = layout->ring_len - 1;
  layout->args_off = sizeof(struct usrbio_markers);
  layout->cqes_off = layout->args_off + ring_len * sizeof(struct usrbio_args);
  layout->sqes_off = layout->cqes_off + ring_len * sizeof(struct hf3fs_cqe);
  layout->sem_off = layout->sqes_off + ring_len * sizeof(struct usrbio_sqe);
  return true;
}

int usrbio_ring_init(struct usrbio_ring *ring, void *base, size_t size_bytes, bool for_read, sem_t *submit_sem) {
  struct usrbio_layout layout;
  if (!usrbio_ring_layout(size_bytes, &layout)) {
    return -EINVAL;
  }
  size_t kept = offsetof(struct usrbio_ring, markers); /* others may be entering */
  memset((uint8_t *)ring + kept, 0, sizeof(*ring) - kept);
  if (!usrbio_slots_init(&ring->slots, layout.entries)) {
    return -ENOMEM;
  }
  uint8_t *bytes = base;
  ring->markers = (struct usrbio_markers *)base;
  ring->args = (struct usrbio_args *)(void *)(bytes + layout.args_off);
  ring->cqes = (struct hf3fs_cqe *)(void *)(bytes + layout.cqes_off);
  ring->sqes = (struct usrbio_sqe *)(void *)(bytes + layout.sqes_off);
  ring->done_sem = (sem_t *)(void *)(bytes + layout.sem_off);
  ring->awaited = (_Atomic uint32_t *)(void *)(bytes + layout.sem_off + sizeof(sem_t));
  ring->ping = ring->awaited + 1;
  ring->pong = ring->awaited + 2;
  ring->gap = ring->awaited + 3;
  ring->submit_sem = submit_sem;
  ring->entries = layout.entries;
  ring->ring_len = layout.ring_len;
  ring->for_read = for_read;
  usrbio_own(&ring->owner);
  usrbio_pace_init(&ring->pace);
  return 0;
}

void usrbio_ring_fini(struct usrbio_ring *ring) { usrbio_slots_fini(&ring->slots); }

/* Flags in users. */
#define CLOSED (UINT32_C(1) << 31)
#define UNUSED (UINT32_C(1) << 30) /* what the ring had is freed */

static struct usrbio_ring *unused; /* under usrbio_lock */

struct usrbio_ring *usrbio_ring_new(void) {
  usrbio_lock();
  struct usrbio_ring *ring = unused;
  if (ring != NULL) {
    unused = ring->next_unused;
  }
  usrbio_unlock();
  if (ring == NULL && (ring = calloc(1, sizeof(*ring))) != NULL) {
    atomic_init(&ring->users, CLOSED | UNUSED);
  }
  return ring;
}

void usrbio_ring_open(struct usrbio_ring *ring) { atomic_fetch_and(&ring->users, ~(CLOSED | UNUSED)); }

void usrbio_ring_discard(struct usrbio_ring *ring) {
  usrbio_lock();
  ring->next_unused = unused;
  unused = ring;
  usrbio_unlock();
}

static void drop(struct usrbio_ring *ring) {
  uint32_t closed = CLOSED;
  /* Between the two, another call may try to enter; it then finds that it is the last one. */
  if (atomic_fetch_sub(&ring->users, 1) - 1 == CLOSED &&
      atomic_compare_exchange_strong(&ring->users, &closed, CLOSED | UNUSED)) {
    sem_close(ring->submit_sem);
    usrbio_registration_free(ring->registration);
    usrbio_ring_fini(ring);
    usrbio_ring_discard(ring);
  }
}

bool usrbio_ring_enter(struct usrbio_ring *ring) {
  if (atomic_fetch_add(&ring->users, 1) & CLOSED) {
    drop(ring);
    return false;
  }
  return true;
}

/* Whoever takes this post sees that the ring is closed, and posts again when it leaves. */
static void wake_waiters(struct usrbio_ring *ring) {
  if (usrbio_is_own(&ring->owner)) {
    atomic_fetch_add((_Atomic uint32_t *)(void *)ring->done_sem, 1);
    usrbio_futex_wake(ring->done_sem, INT_MAX);
  }
}

void usrbio_ring_leave(struct usrbio_ring *ring) {
  if (usrbio_ring_closed(ring)) {
    wake_waiters(ring);
  }
  drop(ring);
}

bool usrbio_ring_close(struct usrbio_ring *ring) {
  atomic_fetch_add(&ring->users, 1);
  if (atomic_fetch_or(&ring->users, CLOSED) & CLOSED) {
    drop(ring);
    return false;
  }
  wake_waiters(ring);
  return true;
}

bool usrbio_ring_closed(const struct usrbio_ring *ring) {
  return (atomic_load_explicit(&ring->users, memory_order_relaxed) & CLOSED) != 0;
}

bool usrbio_ring_ours(struct usrbio_ring *ring) {
  if (usrbio_is_own(&ring->owner)) {
    return true;
  }
  if (!usrbio_may_take(&ring->owner)) {
    return false;
  }
  usrbio_own(&ring->owner);
  return true;
}

int usrbio_ring_push(struct usrbio_ring *ring, const struct usrbio_args *args) {
  /*
   * The head is read from shared memory, although only we store it: after a fork the parent may have
   * moved it, and a child that takes over the ring must continue from there.
   */
  uint32_t head = atomic_load_explicit(&ring->markers->sqe_head, memory_order_relaxed);
  uint32_t tail = atomic_load_explicit(&ring->markers->sqe_tail, memory_order_acquire);
  if (head >= ring->ring_len || tail >= ring->ring_len) {
    return -EIO;
  }
  uint32_t next = head + 1 == ring->ring_len ? 0 : head + 1;
  if (next == tail) {
    return -EAGAIN; /* even with free slots: an older batch still occupies the submission ring */
  }
  int index = usrbio_slots_take(&ring->slots);
  if (index < 0) {
    return -EAGAIN;
  }
  ring->args[index] = *args;
  ring->sqes[head].index = index;
  ring->sqes[head].userdata = args->userdata;
  /* Release: a daemon that sees the new head also sees the request, which may start from now on. */
  atomic_store_explicit(&ring->markers->sqe_head, next, memory_order_release);
  return index;
}

/*
 * Waiters of one process take turns, because a copy made before a compare-and-swap of the tail could
 * be a whole lap old. The loser does not queue: it returns to its bounded wait. A lock whose holder is
 * another process was copied by fork(); the holding thread does not exist in this process.
 */
static bool begin_reap(struct usrbio_ring *ring) {
  uint32_t self = usrbio_generation();
  uint32_t holder = 0;
  do {
    if (atomic_compare_exchange_strong_explicit(&ring->reaper, &holder, self, memory_order_acquire,
                                                memory_order_relaxed)) {
      return true;
    }
  } while (holder != self);
  return false;
}

static void end_reap(struct usrbio_ring *ring) { atomic_store_explicit(&ring->reaper, 0, memory_order_release); }

/* Keeps the completions whose slot is outstanding. */
static uint32_t keep_outstanding(struct usrbio_ring *ring, struct hf3fs_cqe *cqes, uint32_t count) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!usrbio_slots_give_back(&ring->slots, cqes[i].index)) {
      /* Log this only once: a broken daemon must not fill the disk with log lines. */
      if (!atomic_exchange(&ring->complained, true)) {
        usrbio_log(USRBIO_ERROR, "completion for index %d, which is not outstanding, dropped", cqes[i].index);
      }
      continue;
    }
    if (kept != i) {
      cqes[kept] = cqes[i];
    }
    kept++;
  }
  return kept;
}

int usrbio_ring_reap(struct usrbio_ring *ring, struct hf3fs_cqe *out, int room, bool *held_back) {
  *held_back = false;
  if (!begin_reap(ring)) {
    return 0;
  }
  uint32_t head = atomic_load_explicit(&ring->markers->cqe_head, memory_order_acquire);
  uint32_t tail = atomic_load_explicit(&ring->markers->cqe_tail, memory_order_acquire);
  if (head >= ring->ring_len || tail >= ring->ring_len) {
    end_reap(ring);
    return -EIO;
  }
  uint32_t count = head >= tail ? head - tail : head + ring->ring_len - tail;
  if (count > (uint32_t)room) {
    count = (uint32_t)room;
  }
  uint32_t slot = tail;
  for (uint32_t i = 0; i < count; i++) {
    out[i] = ring->cqes[slot];
    slot = slot + 1 == ring->ring_len ? 0 : slot + 1;
  }
  /* Release: the daemon may overwrite the slots only after we copied them. Fails if a forked process was faster. */
  if (count > 0 && !atomic_compare_exchange_strong_explicit(&ring->markers->cqe_tail, &tail, slot,
                                                            memory_order_acq_rel, memory_order_relaxed)) {
    count = 0;
  }
  end_reap(ring);
  *held_back = count > 0 && atomic_load_explicit(&ring->markers->sqe_tail, memory_order_relaxed) !=
                                atomic_load_explicit(&ring->markers->sqe_head, memory_order_relaxed);
  atomic_fetch_add_explicit(&ring->untaken, count, memory_order_relaxed);
  /* Slots are freed after the tail is stored, so that outstanding requests never exceed the completion space. */
  return (int)keep_outstanding(ring, out, count);
}

bool usrbio_ring_ready(const struct usrbio_ring *ring) {
  /* Not relaxed: a sleeper stores what it awaits before, and the daemon reads that after it has stored the head. */
  return atomic_load(&ring->markers->cqe_head) != atomic_load(&ring->markers->cqe_tail);
}

/* Returns whether there was a post. */
static bool take_posts(struct usrbio_ring *ring) {
  atomic_store_explicit(&ring->untaken, 0, memory_order_relaxed);
  uint32_t taken = 0;
  while (taken < MOST_POSTS && sem_trywait(ring->done_sem) == 0) {
    taken++;
  }
  return taken > 0;
}

/* sem_clockwait of glibc: the value is the low half of the first word, the number of waiters the high half. */
static void await_post(struct usrbio_ring *ring, uint64_t until_ns) {
  const uint64_t one_waiter = UINT64_C(1) << 32;
  _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)ring->done_sem;
  if ((uint32_t)atomic_fetch_add(word, one_waiter) == 0 && !usrbio_ring_closed(ring)) {
    usrbio_futex_wait(ring->done_sem, 0, until_ns);
  }
  /* The daemon may have overwritten the number: it must not go below 0. */
  uint64_t now = atomic_load(word);
  while (now >= one_waiter && !atomic_compare_exchange_weak(word, &now, now - one_waiter)) {
  }
  sem_trywait(ring->done_sem);
}

/*
 * Two sleepers may lack different numbers, so then any completion wakes one. Whoever comes second sees the first, or
 * is seen by it, because both announce themselves before they look.
 */
static void say_awaited(struct usrbio_ring *ring, uint32_t missing) {
  uint32_t busy = usrbio_slots_busy(&ring->slots, missing);
  /* If more are missing than are in flight, others have to submit them, maybe as slots become free: do not drain the ring. */
  atomic_store(ring->awaited, busy < missing ? busy / 2 : missing);
  if (atomic_load(&ring->sleepers) > 1) {
    atomic_store(ring->awaited, 0);
  }
}

void usrbio_ring_sleep(struct usrbio_ring *ring, uint32_t missing, uint64_t until_ns) {
  atomic_fetch_add(&ring->sleepers, 1);
  say_awaited(ring, missing);
  bool posted = take_posts(ring);
  if (usrbio_ring_ready(ring)) {
    /* Another thread is reaping them, maybe one of a lower priority, to which sched_yield would give nothing. */
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  } else if (!posted) {
    await_post(ring, until_ns);
  }
  atomic_store(ring->awaited, 0);
  atomic_fetch_sub(&ring->sleepers, 1);
}

void usrbio_ring_drop_old_posts(struct usrbio_ring *ring) {
  if (atomic_load_explicit(&ring->untaken, memory_order_relaxed) >= MANY_POSTS) {
    take_posts(ring);
  }
}

void usrbio_ring_pass_on(struct usrbio_ring *ring) {
  /* A read-modify-write, so that a thread that announces its sleep later sees the completions that we saw. */
  if (usrbio_ring_ready(ring) && atomic_fetch_add(&ring->sleepers, 0) > 0) {
    usrbio_submitsem_post(ring->done_sem);
  }
}

#define NS_PER_MS UINT64_C(1000000)
#define MOST_GAP_S 3600
#define LEAST_ANSWER_NS (2000 * NS_PER_MS)
#define ANSWER_NS (30000 * NS_PER_MS) /* a daemon that serves the ring copies ping within some 50 ms, if the host is not busy */
#define ANSWER_LOOK_NS 5000000

static bool answered(const struct usrbio_ring *ring) { return atomic_load(ring->pong) == atomic_load(ring->ping); }

static uint64_t gap_ns(const struct usrbio_ring *ring) {
  uint64_t seconds = atomic_load(ring->gap);
  return (seconds < MOST_GAP_S ? seconds : MOST_GAP_S) * 1000 * NS_PER_MS;
}

static void ask(struct usrbio_ring *ring) {
  atomic_store(&ring->pinged_ns, usrbio_now_ns());
  atomic_store(ring->ping, atomic_load(ring->pong) + 1);
}

bool usrbio_ring_may_be_served(struct usrbio_ring *ring) {
  uint64_t pinged_ns = atomic_load(&ring->pinged_ns), gap = gap_ns(ring);
  if (gap == 0) {
    return false;
  }
  if (pinged_ns != 0 && !answered(ring)) {
    return usrbio_now_ns() - pinged_ns < gap;
  }
  ask(ring);
  return true;
}

bool usrbio_ring_is_served(struct usrbio_ring *ring) {
  if (gap_ns(ring) == 0) {
    return false;
  }
  if (atomic_load(&ring->pinged_ns) == 0 || answered(ring)) {
    ask(ring);
  }
  uint64_t begin_ns = usrbio_now_ns(), asked_ns = atomic_load(&ring->pinged_ns);
  while (!answered(ring)) {
    /* The gap becomes 0 when the daemon ends for good. A successor may have begun just now. */
    uint64_t gap = gap_ns(ring), now_ns = usrbio_now_ns();
    if (gap == 0 || (now_ns - asked_ns >= (gap < ANSWER_NS ? gap : ANSWER_NS) && now_ns - begin_ns >= LEAST_ANSWER_NS)) {
      return false;
    }
    nanosleep(&(struct timespec){.tv_nsec = ANSWER_LOOK_NS}, NULL);
  }
  return true;
}
