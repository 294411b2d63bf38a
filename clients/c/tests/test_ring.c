/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fdtable.h"
#include "hf3fs_usrbio.h"
#include "ring.h"
#include "ringpeer.h"

/* A ring on plain memory, a buffer, a registered file, and a peer that has not been started. */
struct fixture {
  void *memory;
  size_t size;
  sem_t submit;
  struct usrbio_ring ring;
  struct hf3fs_ior ior;
  struct hf3fs_iov iov;
  uint8_t data[4096];
  int fd;
  struct ringpeer peer;
};

static void setup(struct fixture *f, int entries, bool for_read) {
  memset(f, 0, sizeof(*f));
  f->size = hf3fs_ior_size(entries);
  f->memory = aligned_alloc(64, (f->size + 63) / 64 * 64);
  CHECK(f->memory != NULL);
  memset(f->memory, 0, f->size);
  CHECK_EQ(sem_init(&f->submit, 1, 0), 0);
  peer_init(&f->peer, f->memory, f->size, &f->submit);
  CHECK_EQ(usrbio_ring_init(&f->ring, f->memory, f->size, for_read, &f->submit), 0);
  f->ior.iorh = &f->ring;
  f->ior.for_read = for_read;
  const uint8_t id[16] = "0123456789abcde";
  CHECK_EQ(hf3fs_iovwrap(&f->iov, f->data, id, "/m", sizeof(f->data), 0, -1), 0);
  f->fd = open("/dev/null", O_RDWR);
  CHECK(usrbio_fdtable_add(f->fd) < 0);
}

static void teardown(struct fixture *f) {
  hf3fs_dereg_fd(f->fd);
  close(f->fd);
  usrbio_ring_fini(&f->ring);
  free(f->memory);
}

static int prep(struct fixture *f, uint64_t len, uintptr_t userdata) {
  return hf3fs_prep_io(&f->ior, &f->iov, f->ring.for_read, f->data, f->fd, 0, len, (const void *)userdata);
}

static int submits(struct fixture *f) {
  int value;
  CHECK_EQ(sem_getvalue(&f->submit, &value), 0);
  return value;
}

static struct timespec in_ms(long ms) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  long ns = t.tv_nsec + ms % 1000 * 1000000;
  t.tv_sec += ms / 1000 + ns / 1000000000;
  t.tv_nsec = ns % 1000000000;
  return t;
}

/* Somebody sets the clock while a call waits. */
static _Atomic long step_seconds, steps_after;

int clock_gettime(clockid_t which, struct timespec *t) {
  long err = syscall(SYS_clock_gettime, which, t);
  if (which == CLOCK_REALTIME && atomic_load(&step_seconds) != 0 && atomic_fetch_sub(&steps_after, 1) <= 0) {
    t->tv_sec += atomic_load(&step_seconds);
  }
  return (int)err;
}

static void clock_is_set_back(void) {
  struct fixture f;
  struct hf3fs_cqe c[1];
  setup(&f, 2, true);
  struct timespec soon = in_ms(100);
  atomic_store(&steps_after, 1);
  atomic_store(&step_seconds, -3600);
  alarm(60);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 1, 1, &soon), 0);
  alarm(0);
  atomic_store(&step_seconds, 0);
  teardown(&f);
}

static void *wait_half_a_second(void *arg) {
  struct fixture *f = arg;
  struct hf3fs_cqe c[1];
  struct timespec soon = in_ms(500);
  CHECK_EQ(hf3fs_wait_for_ios(&f->ior, c, 1, 1, &soon), 0);
  return NULL;
}

/* Waiters to whom nothing comes do not wake every millisecond. */
static void idle_waiters_sleep(void) {
  enum { WAITERS = 32 };
  struct fixture f;
  pthread_t threads[WAITERS];
  struct rusage before, after;
  setup(&f, 2, true);
  CHECK_EQ(getrusage(RUSAGE_SELF, &before), 0);
  for (int i = 0; i < WAITERS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, wait_half_a_second, &f), 0);
  }
  for (int i = 0; i < WAITERS; i++) {
    pthread_join(threads[i], NULL);
  }
  CHECK_EQ(getrusage(RUSAGE_SELF, &after), 0);
  CHECK(after.ru_nvcsw - before.ru_nvcsw < WAITERS * 100);
  teardown(&f);
}

static void sizes(void) {
  static const struct {
    int entries;
    size_t bytes, cqes, sqes, sem;
  } table[] = {{1, 4336, 128, 176, 208},
               {100, 13840, 5672, 8096, 9712},
               {128, 16528, 7240, 10336, 12400},
               {1024, 102544, 57416, 82016, 98416}};
  struct usrbio_layout l;
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
    CHECK_EQ(hf3fs_ior_size(table[i].entries), table[i].bytes);
    CHECK(usrbio_ring_layout(table[i].bytes, &l));
    CHECK_EQ(l.entries, table[i].entries);
    CHECK_EQ(l.args_off, 16);
    CHECK_EQ(l.cqes_off, table[i].cqes);
    CHECK_EQ(l.sqes_off, table[i].sqes);
    CHECK_EQ(l.sem_off, table[i].sem);
    CHECK(usrbio_ring_layout(table[i].bytes + 95, &l));
    CHECK_EQ(l.entries, table[i].entries);
  }
  CHECK_EQ(hf3fs_ior_size(0), 4240);
  CHECK_EQ(hf3fs_ior_size(-1), 0);
  size_t too_small[] = {0, 1, 4143, 4144, 4239, 4240, 4335};
  for (size_t i = 0; i < sizeof(too_small) / sizeof(too_small[0]); i++) {
    CHECK(!usrbio_ring_layout(too_small[i], &l));
  }
  CHECK(usrbio_ring_layout(hf3fs_ior_size(INT_MAX), &l));
  CHECK_EQ(l.ring_len, INT_MAX);
}

static void what_prep_writes(void) {
  struct fixture f;
  setup(&f, 4, true);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, f.data + 100, f.fd, 77, 200, (void *)0x1234), 0);
  struct stat st;
  CHECK_EQ(fstat(f.fd, &st), 0);
  const uint8_t *m = f.memory;
  uint64_t words[5];
  memcpy(words, m + 16 + 16, sizeof(words));
  CHECK(memcmp(m + 16, "0123456789abcde", 16) == 0);
  CHECK_EQ(words[0], 100);
  CHECK_EQ(words[1], st.st_ino);
  CHECK_EQ(words[2], 77);
  CHECK_EQ(words[3], 200);
  CHECK_EQ(words[4], 0x1234);
  CHECK_EQ(f.ring.sqes[0].index, 0);
  CHECK_EQ(f.ring.sqes[0].userdata, 0x1234);
  CHECK_EQ(atomic_load(peer_marker(&f.peer, 0)), 1);
  CHECK_EQ(submits(&f), 0);
  CHECK_EQ(hf3fs_submit_ios(&f.ior), 0);
  CHECK_EQ(submits(&f), 1);
  teardown(&f);
}

static void what_prep_refuses(void) {
  struct fixture f;
  setup(&f, 4, true);
  uint8_t *d = f.data;
  size_t n = sizeof(f.data);
  struct hf3fs_ior empty;
  struct hf3fs_iov no_base = f.iov;
  memset(&empty, 0, sizeof(empty));
  no_base.base = NULL;
  CHECK_EQ(hf3fs_prep_io(NULL, &f.iov, true, d, f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&empty, &f.iov, true, d, f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, false, d, f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, NULL, true, d, f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &no_base, true, d, f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d, f.fd, 0, 0, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, (void *)((uintptr_t)d - 1), f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d, f.fd, 0, n + 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d + n, f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, (void *)((uintptr_t)d + n + 1), f.fd, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d + 1, f.fd, 0, UINT64_MAX, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d, INT_MAX, 0, 1, NULL), -EINVAL);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d, 4321, 0, 1, NULL), -EBADF);
  int wr = open("/dev/null", O_WRONLY), rd = open("/dev/null", O_RDONLY);
  CHECK(usrbio_fdtable_add(wr) < 0);
  CHECK(usrbio_fdtable_add(rd) < 0);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d, wr, 0, 1, NULL), -EACCES);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, true, d + n - 1, rd, 0, 1, NULL), 0);
  f.ring.for_read = false;
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, false, d, rd, 0, 1, NULL), -EACCES);
  CHECK_EQ(hf3fs_prep_io(&f.ior, &f.iov, false, d, wr, 0, 1, NULL), 1);
  CHECK_EQ(hf3fs_submit_ios(NULL), -EINVAL);
  CHECK_EQ(hf3fs_submit_ios(&empty), -EINVAL);
  CHECK_EQ(hf3fs_io_entries(&empty), -EINVAL);
  CHECK_EQ(hf3fs_io_entries(&f.ior), 4);
  hf3fs_dereg_fd(wr);
  hf3fs_dereg_fd(rd);
  close(wr);
  close(rd);
  teardown(&f);
}

static void full_and_lowest_free(void) {
  struct fixture f;
  struct hf3fs_cqe c[8];
  setup(&f, 4, true);
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(prep(&f, 1, (uintptr_t)i), i);
  }
  CHECK_EQ(prep(&f, 1, 9), -EAGAIN);
  atomic_store(peer_marker(&f.peer, 1), 2); /* the daemon took two */
  CHECK_EQ(prep(&f, 1, 9), -EAGAIN);        /* but no index is free */
  CHECK(peer_complete(&f.peer, 1, -EIO, 1));
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, NULL), 1);
  CHECK_EQ(c[0].index, 1);
  CHECK_EQ(c[0].result, -EIO);
  CHECK_EQ(submits(&f), 1); /* completion space was freed */
  CHECK_EQ(prep(&f, 1, 9), 1);
  /* A later batch completes first: indices are free, submission slots are not. */
  CHECK(peer_complete(&f.peer, 3, 1, 3));
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 0, NULL), 1);
  CHECK_EQ(prep(&f, 1, 9), 3);
  atomic_store(peer_marker(&f.peer, 1), (atomic_load(peer_marker(&f.peer, 0)) + 1) % 5);
  CHECK(peer_complete(&f.peer, 0, 1, 0));
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 0, NULL), 1);
  CHECK_EQ(prep(&f, 1, 9), -EAGAIN);
  teardown(&f);
}

static void how_wait_counts(void) {
  struct fixture f;
  struct hf3fs_cqe c[8];
  setup(&f, 6, true);
  CHECK_EQ(hf3fs_wait_for_ios(NULL, c, 1, 0, NULL), -EINVAL);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 0, 0, NULL), -EINVAL);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, NULL, 1, 0, NULL), -EINVAL);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 0, NULL), 0);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, -5, NULL), 0);
  struct timespec past = {.tv_sec = 5, .tv_nsec = 2000000000}, negative = {.tv_sec = -1};
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, &past), 0);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, &negative), 0);
  struct timespec soon = in_ms(20), begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, &soon), 0);
  clock_gettime(CLOCK_MONOTONIC, &end);
  CHECK((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 >= 15);
  CHECK_EQ(submits(&f), 0);

  for (int i = 0; i < 6; i++) {
    CHECK_EQ(prep(&f, (uint64_t)i + 1, 100 + (uintptr_t)i), i);
  }
  f.peer.backwards = true;
  CHECK_EQ(peer_serve(&f.peer), 6);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 2, 100, &past), 2); /* min is clamped; completions that are ready count even after the deadline */
  CHECK_EQ(c[0].index, 5);
  CHECK_EQ(c[0].result, 6);
  CHECK_EQ((uintptr_t)c[0].userdata, 105);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, NULL), 4); /* more than the minimum, because they are ready */
  CHECK_EQ(c[3].index, 0);
  CHECK_EQ(submits(&f), 0); /* nothing is queued that could have waited for space */
  teardown(&f);
}

/* The semaphore is a hint only: neither a lost post nor a large jitter loses a completion. */
static void lost_post(void) {
  struct fixture f;
  struct hf3fs_cqe c[1];
  setup(&f, 2, false);
  f.peer.mute = true;
  peer_start(&f.peer);
  CHECK_EQ(setenv("HF3FS_USRBIO_WAIT_JITTER_MS", "5", 1), 0);
  for (int i = 0; i < 20; i++) {
    CHECK_EQ(prep(&f, 7, 1), 0);
    CHECK_EQ(hf3fs_submit_ios(&f.ior), 0);
    CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 1, 1, NULL), 1);
  }
  CHECK_EQ(setenv("HF3FS_USRBIO_WAIT_JITTER_MS", "nonsense", 1), 0);
  CHECK_EQ(prep(&f, 7, 1), 0);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 1, 1, NULL), 1);
  CHECK_EQ(unsetenv("HF3FS_USRBIO_WAIT_JITTER_MS"), 0);
  peer_stop(&f.peer);
  teardown(&f);
}

static void hostile_peer(void) {
  struct fixture f;
  struct hf3fs_cqe c[8];
  setup(&f, 4, true);
  CHECK_EQ(prep(&f, 1, 0), 0);
  CHECK_EQ(prep(&f, 1, 1), 1);
  CHECK(peer_complete(&f.peer, -1, 1, 0));
  CHECK(peer_complete(&f.peer, INT32_MAX, 1, 0));
  CHECK(peer_complete(&f.peer, 3, 1, 0)); /* never prepared */
  CHECK(peer_complete(&f.peer, 1, 1, 1));
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 0, NULL), 1);
  CHECK_EQ(c[0].index, 1);
  CHECK(peer_complete(&f.peer, 1, 1, 1)); /* the same again */
  struct timespec past = {0};
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, &past), 0);

  uint32_t head = atomic_load(peer_marker(&f.peer, 2));
  atomic_store(peer_marker(&f.peer, 2), 5);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, NULL), -EIO);
  atomic_store(peer_marker(&f.peer, 2), UINT32_MAX);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 0, NULL), -EIO);
  atomic_store(peer_marker(&f.peer, 2), head);
  atomic_store(peer_marker(&f.peer, 3), 77);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 8, 1, NULL), -EIO);
  atomic_store(peer_marker(&f.peer, 3), head);
  atomic_store(peer_marker(&f.peer, 1), UINT32_MAX);
  CHECK_EQ(prep(&f, 1, 0), -EIO);
  atomic_store(peer_marker(&f.peer, 1), 0);
  atomic_store(peer_marker(&f.peer, 0), 5);
  CHECK_EQ(prep(&f, 1, 0), -EIO);
  teardown(&f);
}

/* One thread prepares, others wait, and each userdata comes back exactly once. */
enum { TOTAL = 40000 };

struct stream {
  struct fixture f;
  _Atomic uint32_t reaped;
  _Atomic uint8_t seen[TOTAL];
};

static void *waiter(void *arg) {
  struct stream *s = arg;
  struct hf3fs_cqe c[7];
  while (atomic_load(&s->reaped) < TOTAL) {
    struct timespec soon = in_ms(5);
    int n = hf3fs_wait_for_ios(&s->f.ior, c, 7, 1, &soon);
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
      uintptr_t k = (uintptr_t)c[i].userdata;
      CHECK(k < TOTAL);
      CHECK_EQ(c[i].result, (int64_t)(k % 1000) + 1);
      CHECK_EQ(atomic_exchange(&s->seen[k], 1), 0);
    }
    atomic_fetch_add(&s->reaped, (uint32_t)n);
  }
  return NULL;
}

static void prepare_here_wait_there(int entries, int waiters) {
  struct stream *s = calloc(1, sizeof(*s));
  CHECK(s != NULL);
  setup(&s->f, entries, true);
  s->f.peer.backwards = true;
  peer_start(&s->f.peer);
  pthread_t threads[2];
  for (int i = 0; i < waiters; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, waiter, s), 0);
  }
  for (uintptr_t k = 0; k < TOTAL; k++) {
    int index;
    while ((index = prep(&s->f, k % 1000 + 1, k)) == -EAGAIN) {
      CHECK_EQ(hf3fs_submit_ios(&s->f.ior), 0);
      sched_yield();
    }
    CHECK(index >= 0 && index < entries);
  }
  CHECK_EQ(hf3fs_submit_ios(&s->f.ior), 0);
  for (int i = 0; i < waiters; i++) {
    pthread_join(threads[i], NULL);
  }
  peer_stop(&s->f.peer);
  CHECK_EQ(atomic_load(&s->reaped), TOTAL);
  CHECK_EQ(atomic_load(&s->f.peer.served), TOTAL);
  teardown(&s->f);
  free(s);
}

/* A forked child takes nothing from its parent, and what it inherits from one that has ended does not block it. */
static void forked_child(void) {
  struct fixture f;
  struct hf3fs_cqe c[1];
  setup(&f, 2, true);
  CHECK_EQ(prep(&f, 5, 1), 0);
  CHECK_EQ(peer_serve(&f.peer), 1);
  atomic_store(&f.ring.reaper, usrbio_generation());
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 1, 0, NULL), 0); /* another thread of this process is reaping */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 1, 1, NULL), -EBUSY);
    CHECK_EQ(prep(&f, 5, 1), -EBUSY);
    atomic_store(&f.ring.owner.id, INT_MAX); /* as if the parent had ended */
    CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 1, 1, NULL), 1);
    CHECK_EQ(f.ring.owner.id, getpid());
    CHECK(prep(&f, 5, 1) >= 0);
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  atomic_store(&f.ring.reaper, 0);
  teardown(&f);
}

static int posts(struct fixture *f) {
  int value;
  CHECK_EQ(sem_getvalue(peer_sem(&f->peer), &value), 0);
  return value;
}

/* Completions that nobody had to wait for leave their posts behind: not for ever, and no wait returns early for them. */
static void old_posts(void) {
  struct fixture f;
  struct hf3fs_cqe c[2];
  setup(&f, 2, true);
  for (int i = 0; i < 20000; i++) {
    CHECK_EQ(prep(&f, 1, 0), 0);
    CHECK_EQ(peer_serve(&f.peer), 1);
    CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 2, 1, NULL), 1);
  }
  CHECK(posts(&f) < 1000);
  CHECK(posts(&f) > 0);
  struct timespec soon = in_ms(20);
  CHECK_EQ(hf3fs_wait_for_ios(&f.ior, c, 2, 1, &soon), 0);
  struct timespec now = in_ms(0);
  CHECK(now.tv_sec > soon.tv_sec || (now.tv_sec == soon.tv_sec && now.tv_nsec >= soon.tv_nsec));
  CHECK_EQ(posts(&f), 0);
  teardown(&f);
}

/* With this jitter a wake-up that is lost is never made up for, and the alarm ends the test. */
static void no_jitter(void) {
  CHECK_EQ(setenv("HF3FS_USRBIO_WAIT_JITTER_MS", "2147483647", 1), 0);
  alarm(300);
}

static void jitter_again(void) {
  alarm(0);
  CHECK_EQ(unsetenv("HF3FS_USRBIO_WAIT_JITTER_MS"), 0);
}

static void *wait_for_one(void *arg) {
  struct fixture *f = arg;
  struct hf3fs_cqe c[1];
  CHECK_EQ(hf3fs_wait_for_ios(&f->ior, c, 1, 1, NULL), 1);
  return NULL;
}

/* Until the number of waiters of glibc's semaphore is count. */
static void await_sleepers(struct fixture *f, uint32_t count) {
  while (atomic_load((_Atomic uint32_t *)(void *)peer_sem(&f->peer) + 1) != count) {
    sched_yield();
  }
}

/* Who took the post for two completions and returns with one wakes another waiter for the other. */
static void passes_on(void) {
  struct fixture f;
  setup(&f, 2, true);
  no_jitter();
  pthread_t waiter;
  CHECK_EQ(pthread_create(&waiter, NULL, wait_for_one, &f), 0);
  await_sleepers(&f, 1);
  CHECK_EQ(prep(&f, 1, 0), 0);
  CHECK_EQ(prep(&f, 1, 0), 1);
  f.peer.mute = true; /* as if we had taken the post */
  CHECK_EQ(peer_serve(&f.peer), 2);
  wait_for_one(&f);
  pthread_join(waiter, NULL);
  jitter_again();
  teardown(&f);
}

static void on_signal(int number) { (void)number; }

static void *wait_until_end(void *arg) {
  struct stream *s = arg;
  struct hf3fs_cqe c[1];
  for (;;) {
    CHECK_EQ(hf3fs_wait_for_ios(&s->f.ior, c, 1, 1, NULL), 1);
    if (c[0].result == 1) {
      return NULL;
    }
    atomic_fetch_add(&s->reaped, 1);
  }
}

static void *wait_for_three(void *arg) {
  struct fixture *f = arg;
  struct hf3fs_cqe c[3];
  CHECK_EQ(hf3fs_wait_for_ios(&f->ior, c, 3, 3, NULL), 3);
  return NULL;
}

/* A sleeper says how many completions it lacks, two sleepers do not, and what is said ends with the sleep. */
static void what_is_awaited(void) {
  struct fixture f;
  pthread_t three, one;
  setup(&f, 4, true);
  no_jitter();
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(prep(&f, 1, 0), i);
  }
  CHECK_EQ(pthread_create(&three, NULL, wait_for_three, &f), 0);
  await_sleepers(&f, 1);
  CHECK_EQ(atomic_load(peer_awaited(&f.peer)), 3);

  CHECK_EQ(pthread_create(&one, NULL, wait_for_one, &f), 0);
  await_sleepers(&f, 2);
  CHECK_EQ(atomic_load(peer_awaited(&f.peer)), 0);

  CHECK_EQ(peer_serve(&f.peer), 4);
  pthread_join(three, NULL);
  pthread_join(one, NULL);
  CHECK_EQ(atomic_load(peer_awaited(&f.peer)), 0);
  jitter_again();
  teardown(&f);
}

/* A waiter for many is woken once, though the daemon completes one at a time. */
static void one_wake_up_for_many(void) {
  struct fixture f;
  pthread_t three;
  int posts;
  setup(&f, 4, true);
  no_jitter();
  f.peer.thrifty = true;
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(prep(&f, 1, 0), i);
  }
  CHECK_EQ(pthread_create(&three, NULL, wait_for_three, &f), 0);
  await_sleepers(&f, 1);
  for (int i = 0; i < 2; i++) {
    CHECK(peer_complete(&f.peer, i, 1, 0));
    CHECK(!peer_is_awaited(&f.peer));
  }
  CHECK(peer_complete(&f.peer, 2, 1, 0));
  CHECK(peer_is_awaited(&f.peer));
  sem_post(peer_sem(&f.peer));
  pthread_join(three, NULL);
  CHECK_EQ(sem_getvalue(peer_sem(&f.peer), &posts), 0);
  CHECK_EQ(posts, 0);
  jitter_again();
  teardown(&f);
}

static void *wait_for_eight(void *arg) {
  struct fixture *f = arg;
  struct hf3fs_cqe c[8];
  CHECK_EQ(hf3fs_wait_for_ios(&f->ior, c, 8, 8, NULL), 8);
  return NULL;
}

/* A waiter for more than the ring has in flight is woken while requests are left, so that it frees slots in time. */
static void more_than_in_flight(void) {
  struct fixture f;
  pthread_t eight;
  setup(&f, 4, true);
  no_jitter();
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(prep(&f, 1, 0), i);
  }
  CHECK_EQ(pthread_create(&eight, NULL, wait_for_eight, &f), 0);
  await_sleepers(&f, 1);
  CHECK_EQ(atomic_load(peer_awaited(&f.peer)), 2);
  CHECK_EQ(peer_serve(&f.peer), 4);
  for (int i = 0; i < 4; i++) {
    while (prep(&f, 1, 0) == -EAGAIN) {
      sched_yield();
    }
  }
  CHECK_EQ(peer_serve(&f.peer), 4);
  pthread_join(eight, NULL);
  jitter_again();
  teardown(&f);
}

struct many {
  struct stream s;
  uint32_t total;
};

static void *wait_for_many(void *arg) {
  struct many *m = arg;
  struct hf3fs_cqe c[16];
  for (uint32_t reaped = 0; reaped < m->total;) {
    uint32_t left = m->total - reaped;
    int want = 1 + (int)((reaped * 7) % 16);
    want = (uint32_t)want < left ? want : (int)left;
    CHECK_EQ(hf3fs_wait_for_ios(&m->s.f.ior, c, want, want, NULL), want);
    reaped += (uint32_t)want;
    atomic_store(&m->s.reaped, reaped);
  }
  return NULL;
}

/* A waiter for many, who sleeps until they are there, loses no wake-up. */
static void no_wake_up_for_many_is_lost(int entries, uint32_t total) {
  struct many *m = calloc(1, sizeof(*m));
  pthread_t waiter;
  CHECK(m != NULL);
  m->total = total;
  setup(&m->s.f, entries, true);
  no_jitter();
  m->s.f.peer.thrifty = true;
  peer_start(&m->s.f.peer);
  CHECK_EQ(pthread_create(&waiter, NULL, wait_for_many, m), 0);
  for (uint32_t k = 0; k < total; k++) {
    while (prep(&m->s.f, 2, k) == -EAGAIN) {
      sched_yield();
    }
    CHECK_EQ(hf3fs_submit_ios(&m->s.f.ior), 0);
  }
  pthread_join(waiter, NULL);
  peer_stop(&m->s.f.peer);
  jitter_again();
  teardown(&m->s.f);
  free(m);
}

/* Waiters who sleep and spin by turns, interrupted by signals, lose no wake-up. */
static void no_wake_up_is_lost(int entries, int waiters, uint32_t total, bool thrifty) {
  struct stream *s = calloc(1, sizeof(*s));
  CHECK(s != NULL);
  setup(&s->f, entries, true);
  no_jitter();
  s->f.peer.thrifty = thrifty;
  peer_start(&s->f.peer);
  pthread_t threads[4];
  for (int i = 0; i < waiters; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, wait_until_end, s), 0);
  }
  for (uint32_t k = 0; k < total + (uint32_t)waiters; k++) {
    int index;
    /* Now and then all is complete, so that the waiters sleep. */
    while (k % 97 == 0 && atomic_load(&s->reaped) < k && k < total) {
      sched_yield();
    }
    while ((index = prep(&s->f, k < total ? 2 : 1, k)) == -EAGAIN) {
      sched_yield();
    }
    CHECK(index >= 0 && index < entries);
    CHECK_EQ(hf3fs_submit_ios(&s->f.ior), 0);
    if (k < total && k % 13 == 0) {
      pthread_kill(threads[k % (uint32_t)waiters], SIGUSR1);
    }
  }
  for (int i = 0; i < waiters; i++) {
    pthread_join(threads[i], NULL);
  }
  peer_stop(&s->f.peer);
  CHECK_EQ(atomic_load(&s->reaped), total);
  jitter_again();
  teardown(&s->f);
  free(s);
}

int main(void) {
  sizes();
  what_prep_writes();
  what_prep_refuses();
  full_and_lowest_free();
  how_wait_counts();
  lost_post();
  hostile_peer();
  prepare_here_wait_there(1, 1);
  prepare_here_wait_there(70, 1);
  prepare_here_wait_there(70, 2);
  forked_child();
  old_posts();
  passes_on();
  what_is_awaited();
  one_wake_up_for_many();
  more_than_in_flight();
  clock_is_set_back();
  idle_waiters_sleep();
  /* SA_RESTART is not set: waits are interrupted. */
  CHECK_EQ(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL), 0);
  const char *setting = getenv("USRBIO_TEST_ROUND_TRIPS");
  uint32_t total = setting == NULL ? 5000 : (uint32_t)strtoul(setting, NULL, 10);
  for (int thrifty = 0; thrifty < 2; thrifty++) {
    no_wake_up_is_lost(1, 1, total, thrifty);
    no_wake_up_is_lost(8, 1, total, thrifty);
    no_wake_up_is_lost(8, 4, total, thrifty);
  }
  no_wake_up_for_many_is_lost(4, total);
  no_wake_up_for_many_is_lost(32, total);
  return 0;
}
