/* SPDX-License-Identifier: Apache-2.0 */

#include "check.h"
#include "pace.h"

/* One wait of so many nanoseconds for so many completions. Returns whether it spun. */
static bool wait_for(struct usrbio_pace *pace, uint64_t took_ns, int came) {
  struct usrbio_wait wait = {0};
  usrbio_wait_begin(pace, &wait, 1000, 5);
  uint64_t end_ns = usrbio_spin_end_ns(&wait, 1000, 5);
  CHECK(wait.spins ? end_ns > 1000 && end_ns <= 1000 + 50000 : end_ns == 0);
  usrbio_wait_end(pace, &wait, 1000 + took_ns, 5 + came);
  return wait.spins;
}

static int spins_in(struct usrbio_pace *pace, int waits, uint64_t took_ns, int came) {
  int spins = 0;
  for (int i = 0; i < waits; i++) {
    spins += wait_for(pace, took_ns, came);
  }
  return spins;
}

/* A wait for many spins on while they come quickly, and no longer than a moment after the last. */
static void check_goes_on(void) {
  struct usrbio_pace pace;
  usrbio_pace_init(&pace);
  pace.can_spin = true;
  struct usrbio_wait wait = {0};
  usrbio_wait_begin(&pace, &wait, 1000, 0);
  uint64_t end_ns = usrbio_spin_end_ns(&wait, 31000, 16);
  CHECK(end_ns > 61000);
  CHECK_EQ(usrbio_spin_end_ns(&wait, 41000, 16), end_ns); /* nothing more came */
  CHECK(usrbio_spin_end_ns(&wait, 61000, 32) > 91000);
  end_ns = usrbio_spin_end_ns(&wait, 71000, 33);
  CHECK_EQ(usrbio_spin_end_ns(&wait, 500000, 34), end_ns); /* slowly */
  struct usrbio_pace sleeps = {.can_spin = false};
  struct usrbio_wait other = {0};
  usrbio_wait_begin(&sleeps, &other, 1000, 0);
  CHECK_EQ(usrbio_spin_end_ns(&other, 31000, 16), 0);
}

int main(void) {
  check_goes_on();
  struct usrbio_pace pace;
  usrbio_pace_init(&pace);
  pace.can_spin = true;
  CHECK_EQ(spins_in(&pace, 1000, 5000, 1), 1000);  /* small requests */
  CHECK_EQ(spins_in(&pace, 1000, 90000, 32), 1000); /* many of them at a time */
  CHECK_EQ(spins_in(&pace, 1000, 300000, 1) <= 2 + 1000 / 200, true);
  CHECK_EQ(spins_in(&pace, 1000, 300000, 32) <= 1000 / 200 + 1, true);
  CHECK_EQ(spins_in(&pace, 1000, 5000, 0) <= 1000 / 200 + 1, true); /* deadlines without completions */
  CHECK(spins_in(&pace, 100, 5000, 1) >= 95);                      /* quick again */
  int spins = 0;
  for (int i = 0; i < 1000; i++) {
    spins += wait_for(&pace, i % 3 == 0 ? 5000 : 300000, 1); /* brief ones, but few */
  }
  CHECK(spins < 20);
  pace.can_spin = false;
  CHECK_EQ(spins_in(&pace, 1000, 5000, 1), 0); /* a single processor */
  return 0;
}
