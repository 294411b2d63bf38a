/* SPDX-License-Identifier: Apache-2.0 */

/* Threads that use what others destroy. */

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "fakemount.h"
#include "hf3fs_usrbio.h"
#include "ring.h"

static struct fakemount mount;
static struct hf3fs_iov iov;
static struct hf3fs_ior ior;
static pthread_barrier_t all_here;

static int rounds(int most) {
  const char *setting = getenv("USRBIO_TEST_ROUNDS");
  return setting == NULL ? most : (int)strtol(setting, NULL, 10);
}

static void *destroy_both(void *unused) {
  (void)unused;
  pthread_barrier_wait(&all_here);
  hf3fs_iordestroy(&ior);
  hf3fs_iovdestroy(&iov);
  return NULL;
}

/* One of them destroys. */
static void destroyed_by_two(void) {
  enum { THREADS = 3 };
  CHECK_EQ(pthread_barrier_init(&all_here, NULL, THREADS), 0);
  for (int round = rounds(200); round > 0; round--) {
    pthread_t threads[THREADS];
    CHECK_EQ(hf3fs_iovcreate(&iov, mount.path, 4096, 0, -1), 0);
    CHECK_EQ(hf3fs_iorcreate(&ior, mount.path, 4, true, 0, -1), 0);
    for (int i = 0; i < THREADS; i++) {
      CHECK_EQ(pthread_create(&threads[i], NULL, destroy_both, NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
      pthread_join(threads[i], NULL);
    }
    CHECK(ior.iorh == NULL && iov.iovh == NULL && iov.base == NULL);
  }
  pthread_barrier_destroy(&all_here);
  CHECK_EQ(fakemount_registrations(&mount), 0);
}

/* The struct was copied, and both are destroyed. */
static void destroyed_as_a_copy(void) {
  CHECK_EQ(hf3fs_iorcreate(&ior, mount.path, 4, true, 0, -1), 0);
  struct hf3fs_ior copy = ior;
  hf3fs_iordestroy(&ior);
  hf3fs_iordestroy(&copy);
  CHECK(copy.iorh == NULL);
  copy = ior;
  CHECK_EQ(hf3fs_submit_ios(&copy), -EINVAL);
  CHECK_EQ(fakemount_registrations(&mount), 0);
}

static void *wait_for_the_end(void *unused) {
  (void)unused;
  struct hf3fs_cqe c[1];
  pthread_barrier_wait(&all_here);
  CHECK_EQ(hf3fs_wait_for_ios(&ior, c, 1, 1, NULL), -EINVAL);
  return NULL;
}

/* Whatever the waiters are about when the ring ends, all of them return. Nothing else wakes them. */
static void destroyed_under_those_who_begin_to_wait(void) {
  enum { WAITERS = 4 };
  CHECK_EQ(setenv("HF3FS_USRBIO_WAIT_JITTER_MS", "2147483647", 1), 0);
  CHECK_EQ(pthread_barrier_init(&all_here, NULL, WAITERS + 1), 0);
  for (int round = rounds(1000); round > 0; round--) {
    pthread_t threads[WAITERS];
    CHECK_EQ(hf3fs_iorcreate(&ior, mount.path, 4, true, 0, -1), 0);
    for (int i = 0; i < WAITERS; i++) {
      CHECK_EQ(pthread_create(&threads[i], NULL, wait_for_the_end, NULL), 0);
    }
    pthread_barrier_wait(&all_here);
    for (int i = round % 40; i > 0; i--) {
      sched_yield();
    }
    hf3fs_iordestroy(&ior);
    for (int i = 0; i < WAITERS; i++) {
      pthread_join(threads[i], NULL);
    }
  }
  pthread_barrier_destroy(&all_here);
  CHECK_EQ(unsetenv("HF3FS_USRBIO_WAIT_JITTER_MS"), 0);
}

static _Atomic bool over;

static void *use(void *unused) {
  (void)unused;
  struct hf3fs_cqe c[1];
  static uint8_t memory[64];
  struct hf3fs_iov wrapped;
  static const uint8_t id[16] = "fedcba987654321";
  CHECK_EQ(hf3fs_iovwrap(&wrapped, memory, id, mount.path, sizeof(memory), 0, -1), 0);
  while (!atomic_load(&over)) {
    int end = hf3fs_submit_ios(&ior);
    CHECK(end == 0 || end == -EINVAL);
    end = hf3fs_prep_io(&ior, &wrapped, true, memory, 4321, 0, 1, NULL);
    CHECK(end == -EBADF || end == -EINVAL);
    end = hf3fs_wait_for_ios(&ior, c, 1, 0, NULL);
    CHECK(end == 0 || end == -EINVAL);
    end = hf3fs_io_entries(&ior);
    CHECK(end == 4 || end == -EINVAL);
    end = hf3fs_iorprobe(&ior);
    CHECK(end == 0 || end == -EINVAL || end == -EAGAIN || end == -ENOTCONN);
  }
  return NULL;
}

/* A ring is there or not, whatever another thread is about to do with it. */
static void destroyed_under_all_calls(void) {
  enum { THREADS = 2 };
  pthread_t threads[THREADS];
  memset(&ior, 0, sizeof(ior));
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, use, NULL), 0);
  }
  for (int round = rounds(1000); round > 0; round--) {
    struct hf3fs_ior made;
    CHECK_EQ(hf3fs_iorcreate(&made, mount.path, 4, true, 0, -1), 0);
    __atomic_store_n(&ior.iorh, made.iorh, __ATOMIC_RELEASE);
    sched_yield();
    hf3fs_iordestroy(&ior);
  }
  atomic_store(&over, true);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  CHECK_EQ(fakemount_registrations(&mount), 0);
}

int main(void) {
  alarm(600);
  fakemount_make(&mount);
  destroyed_by_two();
  destroyed_as_a_copy();
  destroyed_under_those_who_begin_to_wait();
  destroyed_under_all_calls();
  return 0;
}
