/* SPDX-License-Identifier: Apache-2.0 */

#include "pace.h"

#include <sched.h>
#include <time.h>

#define SPIN_NS UINT64_C(40000)      /* about what sleeping and being woken costs both sides */
#define BRIEF_EACH_NS UINT64_C(3000) /* of a small request that is cached */

/*
 * Most waits must be brief for the next one to spin, as one that spins in vain takes the processor from others:
 * one that is not brief undoes several that were.
 */
#define MOST_LUCK 8
#define ENOUGH_LUCK 4
#define BAD_LUCK 4

/* Without enough luck one wait in so many spins: one that sleeps may take long only because it sleeps. */
#define PROBE_EVERY 256

void usrbio_pace_init(struct usrbio_pace *pace) {
  cpu_set_t cpus;
  /* It fails where there are more processors than cpu_set_t holds. */
  pace->can_spin = sched_getaffinity(0, sizeof(cpus), &cpus) != 0 || CPU_COUNT(&cpus) > 1;
  atomic_init(&pace->luck, 0);
  atomic_init(&pace->asleep, PROBE_EVERY);
}

uint64_t usrbio_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Threads that race here count a wait too few or too many, which does no harm. */
static bool should_spin(struct usrbio_pace *pace) {
  if (!pace->can_spin) {
    return false;
  }
  uint32_t asleep = atomic_load_explicit(&pace->asleep, memory_order_relaxed);
  bool spins = asleep >= PROBE_EVERY || atomic_load_explicit(&pace->luck, memory_order_relaxed) >= ENOUGH_LUCK;
  atomic_store_explicit(&pace->asleep, spins ? 0 : asleep + 1, memory_order_relaxed);
  return spins;
}

void usrbio_wait_begin(struct usrbio_pace *pace, struct usrbio_wait *wait, uint64_t now_ns, int collected) {
  wait->began_ns = now_ns;
  wait->before = wait->seen = collected;
  wait->spins = should_spin(pace);
  wait->spin_end_ns = wait->spins ? now_ns + SPIN_NS : 0;
}

uint64_t usrbio_spin_end_ns(struct usrbio_wait *wait, uint64_t now_ns, int collected) {
  uint64_t came = (uint64_t)(collected - wait->before);
  if (wait->spins && collected != wait->seen && now_ns - wait->began_ns < came * BRIEF_EACH_NS) {
    wait->spin_end_ns = now_ns + SPIN_NS;
  }
  wait->seen = collected;
  return wait->spin_end_ns;
}

void usrbio_wait_end(struct usrbio_pace *pace, const struct usrbio_wait *wait, uint64_t now_ns, int collected) {
  uint64_t took = now_ns - wait->began_ns;
  int came = collected - wait->before;
  bool brief = came > 0 && (took < SPIN_NS || took < (uint64_t)came * BRIEF_EACH_NS);
  uint32_t luck = atomic_load_explicit(&pace->luck, memory_order_relaxed);
  if (brief && wait->spins) {
    luck = MOST_LUCK;
  } else if (brief) {
    luck = luck < MOST_LUCK ? luck + 1 : MOST_LUCK;
  } else {
    luck = luck > BAD_LUCK ? luck - BAD_LUCK : 0;
  }
  atomic_store_explicit(&pace->luck, luck, memory_order_relaxed);
}
