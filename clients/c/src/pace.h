/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whether a call that waits for completions spins for a moment before it sleeps. It does while completions
 * come quickly: then sleeping and being woken costs each side as much as several small requests.
 */

#ifndef USRBIO_PACE_H
#define USRBIO_PACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What the waits on one ring have been like. */
struct usrbio_pace {
  bool can_spin;           /* there is another processor, on which the daemon can run */
  _Atomic uint32_t luck;   /* how brief recent waits were */
  _Atomic uint32_t asleep; /* waits since the last that spun */
};

/* One call's wait; all zero until it finds nothing to collect. */
struct usrbio_wait {
  uint64_t began_ns; /* CLOCK_MONOTONIC */
  int before;        /* completions that were collected until then */
  int seen;          /* and until the call last looked */
  bool spins;
  uint64_t spin_end_ns; /* 0: it does not spin */
};

void usrbio_pace_init(struct usrbio_pace *pace);

uint64_t usrbio_now_ns(void);

void usrbio_wait_begin(struct usrbio_pace *pace, struct usrbio_wait *wait, uint64_t now_ns, int collected);

/*
 * Until when a call that has found nothing more to collect spins; 0: not at all. It is a moment after the wait began
 * or, while completions come quickly, after the last of them.
 */
uint64_t usrbio_spin_end_ns(struct usrbio_wait *wait, uint64_t now_ns, int collected);

/* Learns from a wait that has begun. */
void usrbio_wait_end(struct usrbio_pace *pace, const struct usrbio_wait *wait, uint64_t now_ns, int collected);

/* Lets the processor's other thread run for some cycles. */
static inline void usrbio_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
