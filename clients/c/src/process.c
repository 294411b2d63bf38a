/* SPDX-License-Identifier: Apache-2.0 */

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

/*
 * The generation, or 0 in a child that has not learnt it yet. In every child with a memory of its own the kernel
 * wipes the page to which it points: also where no handler of fork runs, as after clone.
 */
static _Atomic uint32_t not_wiped; /* by kernels before 4.14 */
static _Atomic uint32_t *current = &not_wiped;

/* What was learnt last, maybe by the parent. */
static _Atomic uint32_t latest;
static _Atomic pid_t latest_id;

/* Several threads of a child may be here at once: what they store is the same. */
static uint32_t learn(void) {
  uint32_t none = 0, generation = atomic_load(&latest) + 1;
  atomic_store(&latest_id, getpid());
  if (!atomic_compare_exchange_strong(current, &none, generation)) {
    return none;
  }
  atomic_store(&latest, generation);
  return generation;
}

uint32_t usrbio_generation(void) {
  uint32_t generation = atomic_load_explicit(current, memory_order_acquire);
  return generation != 0 ? generation : learn();
}

bool usrbio_in_parents_memory(void) {
  usrbio_generation();
  return getpid() != atomic_load(&latest_id);
}

bool usrbio_process_lives(pid_t id) {
  enum { EXITING = 4 }; /* PF_EXITING of linux/sched.h: set before anything is closed, and kept by a zombie */
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)id);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return errno != ENOENT && (kill(id, 0) == 0 || errno != ESRCH);
  }
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) {
    return false;
  }
  text[n] = '\0';
  const char *after_name = strrchr(text, ')');
  unsigned flags = 0;
  if (after_name == NULL || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) {
    return true;
  }
  return (flags & EXITING) == 0;
}

void usrbio_own(struct usrbio_owner *owner) {
  atomic_store(&owner->id, getpid());
  atomic_store_explicit(&owner->generation, usrbio_generation(), memory_order_release);
}

bool usrbio_is_own(const struct usrbio_owner *owner) {
  return atomic_load_explicit(&owner->generation, memory_order_acquire) == usrbio_generation();
}

bool usrbio_may_take(const struct usrbio_owner *owner) {
  if (usrbio_is_own(owner)) {
    return !usrbio_in_parents_memory();
  }
  pid_t id = atomic_load(&owner->id);
  /* An ancestor whose id is ours has ended. */
  return id == getpid() || !usrbio_process_lives(id);
}

void usrbio_lock(void) { pthread_mutex_lock(&mu); }

void usrbio_unlock(void) { pthread_mutex_unlock(&mu); }

static void after_fork_in_child(void) {
  atomic_store(current, 0);
  learn();
  usrbio_unlock();
}

__attribute__((constructor)) static void begin(void) {
  enum { BYTES = 4096, WIPE_ON_FORK = 18 }; /* MADV_WIPEONFORK, which older headers lack */
  void *page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED && madvise(page, BYTES, WIPE_ON_FORK) == 0) {
    current = page;
  } else if (page != MAP_FAILED) {
    munmap(page, BYTES);
  }
  learn();
  pthread_atfork(usrbio_lock, usrbio_unlock, after_fork_in_child);
}
