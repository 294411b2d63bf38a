/* SPDX-License-Identifier: Apache-2.0 */

/* Which argument slots of a ring are free: a bitmap in our own memory, lowest index first. */

#ifndef USRBIO_SLOTS_H
#define USRBIO_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Bit = 1 is free. A summary bit is 1 if its word may have a free bit; it is never 0 for long while
 * the word has one, so that a ring of a million entries is searched in a few hundred loads.
 */
struct usrbio_slots {
  _Atomic uint64_t *words;
  _Atomic uint64_t *summary;
  uint32_t count;
  uint32_t summary_words;
};

bool usrbio_slots_init(struct usrbio_slots *slots, uint32_t count);
void usrbio_slots_fini(struct usrbio_slots *slots);

/* The lowest free index, or -1. May run at the same time as any other call. */
int usrbio_slots_take(struct usrbio_slots *slots);

/* False, and no effect, if index is out of range or already free. */
bool usrbio_slots_give_back(struct usrbio_slots *slots, int32_t index);

#endif
