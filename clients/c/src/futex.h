/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting on a word, by the monotonic clock: sem_clockwait, which does it, is younger than glibc 2.28. */

#ifndef USRBIO_FUTEX_H
#define USRBIO_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits while the 32 bits at word are expected, until the time until_ns. Returns 0 or a positive errno. */
static inline int usrbio_futex_wait(void *word, uint32_t expected, uint64_t until_ns) {
  struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};
  /* Without FUTEX_CLOCK_REALTIME an absolute time is one of CLOCK_MONOTONIC. */
  long err = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, FUTEX_BITSET_MATCH_ANY);
  return err == 0 ? 0 : errno;
}

static inline void usrbio_futex_wake(void *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0); }

#endif
