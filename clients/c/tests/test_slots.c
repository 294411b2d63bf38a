/* SPDX-License-Identifier: Apache-2.0 */

#include <pthread.h>

#include "check.h"
#include "slots.h"

static void lowest_first(uint32_t count) {
  struct usrbio_slots s;
  CHECK(usrbio_slots_init(&s, count));
  for (uint32_t i = 0; i < count; i++) {
    CHECK_EQ(usrbio_slots_take(&s), i);
  }
  CHECK_EQ(usrbio_slots_take(&s), -1);
  uint32_t last = count - 1, middle = last / 2;
  CHECK(usrbio_slots_give_back(&s, (int32_t)last));
  CHECK_EQ(usrbio_slots_give_back(&s, (int32_t)middle), middle != last);
  CHECK_EQ(usrbio_slots_take(&s), middle);
  CHECK_EQ(usrbio_slots_take(&s), middle != last ? (int)last : -1);
  usrbio_slots_fini(&s);
}

static void refuses_what_is_not_out(void) {
  struct usrbio_slots s;
  CHECK(usrbio_slots_init(&s, 70));
  CHECK(!usrbio_slots_give_back(&s, 3));
  CHECK(!usrbio_slots_give_back(&s, -1));
  CHECK(!usrbio_slots_give_back(&s, 70));
  CHECK(!usrbio_slots_give_back(&s, INT32_MAX));
  CHECK_EQ(usrbio_slots_take(&s), 0);
  CHECK(usrbio_slots_give_back(&s, 0));
  CHECK(!usrbio_slots_give_back(&s, 0));
  usrbio_slots_fini(&s);
}

/* One thread takes and one frees, across every word boundary: no index is lost or handed out twice. */
enum { COUNT = 130, ROUNDS = 50000 };
static struct usrbio_slots shared;
static _Atomic int owned[COUNT];
static _Atomic int queue[COUNT + 1];
static _Atomic unsigned produced, consumed;

static void *giver(void *arg) {
  (void)arg;
  for (unsigned n = 0; n < ROUNDS; n++) {
    while (atomic_load(&produced) == n) {
    }
    int index = atomic_load(&queue[n % (COUNT + 1)]);
    atomic_store(&owned[index], 0);
    CHECK(usrbio_slots_give_back(&shared, index));
    atomic_store(&consumed, n + 1);
  }
  return NULL;
}

static void take_and_give_in_two_threads(void) {
  CHECK(usrbio_slots_init(&shared, COUNT));
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, giver, NULL), 0);
  for (unsigned n = 0; n < ROUNDS; n++) {
    int index;
    while ((index = usrbio_slots_take(&shared)) < 0) {
    }
    CHECK_EQ(atomic_exchange(&owned[index], 1), 0);
    atomic_store(&queue[n % (COUNT + 1)], index);
    atomic_store(&produced, n + 1);
  }
  pthread_join(thread, NULL);
  for (int i = 0; i < COUNT; i++) {
    CHECK_EQ(usrbio_slots_take(&shared), i);
  }
  usrbio_slots_fini(&shared);
}

int main(void) {
  uint32_t counts[] = {1, 2, 63, 64, 65, 128, 1024, 4096, 4097, 300000};
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
    lowest_first(counts[i]);
  }
  refuses_what_is_not_out();
  take_and_give_in_two_threads();
  return 0;
}
