/* SPDX-License-Identifier: Apache-2.0 */

/* The free argument slots of a ring: a bitmap in private memory, lowest index first. */

#ifndef USRBIO_SLOTS_H
#define USRBIO_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A bit of 1 means free. A summary bit is 1 if its word may have a free bit; while the word has one it
 * is 0 for a moment at most. So a ring of a million entries is searched in a few hundred loads.
 */
struct usrbio_slots {
  _Atomic uint64_t *words;
  _Atomic uint64_t *summary;
  uint32_t count;
  uint32_t summary_words;
};

bool usrbio_slots_init(struct usrbio_slots *slots, uint32_t count);
void usrbio_slots_fini(struct usrbio_slots *slots);

/* Returns the lowest free index or -1. May run at the same time as any other call. */
int usrbio_slots_take(struct usrbio_slots *slots);

/* Returns how many are not free, or most if they are more. */
uint32_t usrbio_slots_busy(struct usrbio_slots *slots, uint32_t most);

/* Returns false and does nothing if index is out of range or already free. */
bool usrbio_slots_give_back(struct usrbio_slots *slots, int32_t index);

#endif
