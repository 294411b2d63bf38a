/* SPDX-License-Identifier: Apache-2.0 */

#include "slots.h"

#include <stdlib.h>

static uint32_t words_for(uint32_t bits) { return bits / 64 + (bits % 64 != 0); }

static void set_first(_Atomic uint64_t *words, uint32_t bits) {
  uint32_t full = bits / 64;
  for (uint32_t i = 0; i < full; i++) {
    atomic_init(&words[i], UINT64_MAX);
  }
  if (bits % 64 != 0) {
    atomic_init(&words[full], (UINT64_C(1) << (bits % 64)) - 1);
  }
}

bool usrbio_slots_init(struct usrbio_slots *slots, uint32_t count) {
  uint32_t words = words_for(count);
  slots->count = count;
  slots->summary_words = words_for(words);
  slots->words = calloc(words, sizeof(*slots->words));
  slots->summary = calloc(slots->summary_words, sizeof(*slots->summary));
  if (slots->words == NULL || slots->summary == NULL) {
    usrbio_slots_fini(slots);
    return false;
  }
  set_first(slots->words, count);
  set_first(slots->summary, words);
  return true;
}

void usrbio_slots_fini(struct usrbio_slots *slots) {
  free((void *)slots->words);
  free((void *)slots->summary);
  slots->words = NULL;
  slots->summary = NULL;
}

/*
 * First clear the summary bit, then check the word again; give_back sets first the word, then the
 * summary. However the two interleave, one of them leaves the summary bit set.
 */
static void mark_word_empty(struct usrbio_slots *slots, uint32_t word) {
  uint64_t bit = UINT64_C(1) << (word % 64);
  atomic_fetch_and(&slots->summary[word / 64], ~bit);
  if (atomic_load(&slots->words[word]) != 0) {
    atomic_fetch_or(&slots->summary[word / 64], bit);
  }
}

int usrbio_slots_take(struct usrbio_slots *slots) {
  for (uint32_t s = 0; s < slots->summary_words; s++) {
    uint64_t candidates;
    while ((candidates = atomic_load(&slots->summary[s])) != 0) {
      uint32_t word = s * 64 + (uint32_t)__builtin_ctzll(candidates);
      uint64_t free_bits = atomic_load(&slots->words[word]);
      while (free_bits != 0) {
        uint64_t rest = free_bits & (free_bits - 1);
        if (atomic_compare_exchange_weak(&slots->words[word], &free_bits, rest)) {
          if (rest == 0) {
            mark_word_empty(slots, word);
          }
          return (int)(word * 64 + (uint32_t)__builtin_ctzll(free_bits));
        }
      }
      mark_word_empty(slots, word);
    }
  }
  return -1;
}

uint32_t usrbio_slots_busy(struct usrbio_slots *slots, uint32_t most) {
  uint32_t busy = 0;
  for (uint32_t word = 0; word * 64 < slots->count && busy < most; word++) {
    uint32_t bits = slots->count - word * 64 < 64 ? slots->count - word * 64 : 64;
    uint64_t free_bits = atomic_load_explicit(&slots->words[word], memory_order_relaxed);
    busy += bits - (uint32_t)__builtin_popcountll(free_bits);
  }
  return busy < most ? busy : most;
}

bool usrbio_slots_give_back(struct usrbio_slots *slots, int32_t index) {
  if (index < 0 || (uint32_t)index >= slots->count) {
    return false;
  }
  uint32_t word = (uint32_t)index / 64;
  uint64_t bit = UINT64_C(1) << ((uint32_t)index % 64);
  uint64_t before = atomic_fetch_or(&slots->words[word], bit);
  if (before & bit) {
    return false;
  }
  if (before == 0) {
    atomic_fetch_or(&slots->summary[word / 64], UINT64_C(1) << (word % 64));
  }
  return true;
}
