/* SPDX-License-Identifier: Apache-2.0 */

#include "fdtable.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "ioctl.h"
#include "process.h"

#define LEAF_SLOTS 1024
#define LEAVES (USRBIO_FD_LIMIT / LEAF_SLOTS)

#define STATE_USED 1u
#define STATE_MODE_SHIFT 1
#define STATE_MODE_MASK 3u
#define STATE_STEP 8u /* a generation: two consecutive registrations of a slot never share a state */

/* What tells our duplicate from a file that the program has opened under its number since. */
struct origin {
  uint64_t dev;
  uint64_t ino;
  int mark; /* of the open file, see mark_of */
};

/*
 * state: stored under the lock. It says whether ino is valid and changes with every change of ino: a
 * reader that finds the same state before and after reading ino has read a matching pair.
 */
struct slot {
  _Atomic uint32_t state;
  int partner; /* the registration's other number; under the lock */
  bool is_duplicate; /* this number is ours, the partner the caller's; under the lock */
  struct origin origin; /* of the registered file; under the lock */
  _Atomic uint64_t ino;
};

/* Grows by leaves, because the limit on descriptors, by which a flat table would be sized, may be infinite. */
static _Atomic(struct slot *) leaves[LEAVES];

static bool number_of(int fd, unsigned *number) {
  unsigned n = fd < 0 ? 0u - (unsigned)fd : (unsigned)fd;
  *number = n;
  return n < USRBIO_FD_LIMIT;
}

static struct slot *slot_of(unsigned number) {
  struct slot *leaf = atomic_load_explicit(&leaves[number / LEAF_SLOTS], memory_order_acquire);
  return leaf == NULL ? NULL : &leaf[number % LEAF_SLOTS];
}

static struct slot *make_slot_locked(unsigned number) {
  struct slot *found = slot_of(number);
  if (found != NULL) {
    return found;
  }
  struct slot *leaf = calloc(LEAF_SLOTS, sizeof(*leaf));
  if (leaf == NULL) {
    return NULL;
  }
  atomic_store_explicit(&leaves[number / LEAF_SLOTS], leaf, memory_order_release);
  return &leaf[number % LEAF_SLOTS];
}

static bool used_locked(const struct slot *slot) {
  return slot != NULL && atomic_load_explicit(&slot->state, memory_order_relaxed) & STATE_USED;
}

static uint32_t next_state_locked(const struct slot *slot) {
  uint32_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);
  return (state & ~(STATE_STEP - 1)) + STATE_STEP;
}

static void fill_locked(
    struct slot *slot, int partner, bool is_duplicate, const struct usrbio_file *file, const struct origin *origin) {
  uint32_t state = next_state_locked(slot) | (unsigned)file->access_mode << STATE_MODE_SHIFT | STATE_USED;
  slot->partner = partner;
  slot->is_duplicate = is_duplicate;
  slot->origin = *origin;
  /* Release: a reader that sees this ino also sees that the slot's former state has ended. */
  atomic_store_explicit(&slot->ino, file->ino, memory_order_release);
  atomic_store_explicit(&slot->state, state, memory_order_release);
}

static void clear_locked(struct slot *slot) {
  atomic_store_explicit(&slot->state, next_state_locked(slot), memory_order_relaxed);
}

static bool identify(int fd, struct usrbio_file *file, struct origin *origin) {
  struct statx stx;
  /* No sync: the inode number of an open file does not change, so the daemon need not be asked. */
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &stx) != 0) {
    return false;
  }
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0) {
    return false;
  }
  file->ino = stx.stx_ino;
  file->access_mode = flags & O_ACCMODE;
  origin->dev = (uint64_t)stx.stx_dev_major << 32 | stx.stx_dev_minor;
  origin->ino = stx.stx_ino;
  origin->mark = fcntl(fd, F_GETSIG);
  return true;
}

/*
 * Marks the open file that fd and its duplicates share, unless it is marked: with the signal for asynchronous
 * I/O, which regular files do not have. It is 0 in a file that was opened afresh, even in the same one.
 */
static int mark_of(int fd) {
  static _Atomic unsigned next;
  int mark = fcntl(fd, F_GETSIG);
  if (mark == 0) {
    mark = SIGRTMIN + (int)(atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % (unsigned)(SIGRTMAX - SIGRTMIN + 1));
    if (fcntl(fd, F_SETSIG, mark) != 0) {
      mark = 0;
    }
  }
  return mark;
}

/*
 * Above stdio, because a closed stdin must not become a registered file. Close-on-exec, because an
 * exec'ed program does not know of the registration but would keep the inode open.
 */
static int duplicate(int fd, int at_least) { return fcntl(fd, F_DUPFD_CLOEXEC, at_least); }

static int enter_locked(int fd, int dup_fd, const struct usrbio_file *file, struct origin *origin) {
  struct slot *original = make_slot_locked((unsigned)fd);
  struct slot *duplicate_slot = make_slot_locked((unsigned)dup_fd);
  if (original == NULL || duplicate_slot == NULL) {
    return ENOMEM;
  }
  if (used_locked(original)) {
    return EINVAL;
  }
  if (used_locked(duplicate_slot)) {
    return EAGAIN; /* the number is registered and its file was closed since: take another one */
  }
  origin->mark = mark_of(dup_fd);
  fill_locked(original, dup_fd, false, file, origin);
  fill_locked(duplicate_slot, fd, true, file, origin);
  return 0;
}

/* Returns a negated errno or the duplicate now registered with fd; EAGAIN and *taken if that number was in use. */
static int add_with_dup(int fd, int at_least, int *taken) {
  int dup_fd = duplicate(fd, at_least);
  if (dup_fd < 0) {
    return -errno;
  }
  struct usrbio_file file;
  struct origin origin;
  int err;
  if (dup_fd >= USRBIO_FD_LIMIT) {
    err = EMFILE;
  } else if (!identify(dup_fd, &file, &origin)) {
    err = errno;
  } else {
    usrbio_lock();
    err = enter_locked(fd, dup_fd, &file, &origin);
    usrbio_unlock();
  }
  if (err == 0) {
    return dup_fd;
  }
  close(dup_fd);
  *taken = dup_fd;
  return -err;
}

int usrbio_fdtable_add(int fd) {
  unsigned number;
  if (fd < 0 || !number_of(fd, &number)) {
    return EBADF;
  }
  int taken = STDERR_FILENO;
  int result;
  do {
    result = add_with_dup(fd, taken + 1, &taken);
  } while (result == -EAGAIN);
  return -result;
}

/* Closes the duplicate, unless the program has closed it and the number now belongs to another open file. */
static void close_duplicate(int dup_fd, const struct origin *was) {
  struct usrbio_file file;
  struct origin now;
  if (identify(dup_fd, &file, &now)
          ? now.dev == was->dev && now.ino == was->ino && now.mark == was->mark
          : errno == ENOTCONN && fcntl(dup_fd, F_GETSIG) == was->mark) {
    close(dup_fd);
  }
}

bool usrbio_fdtable_remove(int fd) {
  unsigned number;
  if (!number_of(fd, &number)) {
    return false;
  }
  usrbio_lock();
  struct slot *slot = slot_of(number);
  if (!used_locked(slot)) {
    usrbio_unlock();
    return false;
  }
  int dup_fd = slot->is_duplicate ? (int)number : slot->partner;
  struct origin origin = slot->origin;
  clear_locked(slot_of((unsigned)slot->partner));
  clear_locked(slot);
  usrbio_unlock();
  close_duplicate(dup_fd, &origin);
  return true;
}

int usrbio_fdtable_find(int fd, struct usrbio_file *file) {
  unsigned number;
  if (!number_of(fd, &number)) {
    return -EINVAL;
  }
  struct slot *slot = slot_of(number);
  if (slot == NULL) {
    return -EBADF;
  }
  uint32_t before;
  uint32_t after;
  do {
    before = atomic_load_explicit(&slot->state, memory_order_acquire);
    if (!(before & STATE_USED)) {
      return -EBADF;
    }
    /* Acquire: whoever reads the ino of a later registration also sees the later state. */
    file->ino = atomic_load_explicit(&slot->ino, memory_order_acquire);
    after = atomic_load_explicit(&slot->state, memory_order_relaxed);
  } while (before != after);
  file->access_mode = (int)(before >> STATE_MODE_SHIFT & STATE_MODE_MASK);
  return 0;
}

int hf3fs_reg_fd(int fd, uint64_t flags) {
  (void)flags;
  int err = usrbio_check_hf3fs(fd);
  return err == 0 ? usrbio_fdtable_add(fd) : err;
}

/*
 * Does not check what fd is now: the duplicate is ours, so a registration can be ended even if its file
 * was closed first. Until then the number stays taken (hf3fs_reg_fd: EINVAL).
 */
void hf3fs_dereg_fd(int fd) {
  if (!usrbio_in_parents_memory()) {
    usrbio_fdtable_remove(fd);
  }
}
