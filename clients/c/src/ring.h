/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The ring: its layout in shared memory, and the client's half of the protocol.
 *
 * The daemon is the peer and is not trusted. Its two markers and its completions are read once and
 * checked before use. What fails a check is dropped or reported, never used as an index.
 */

#ifndef USRBIO_RING_H
#define USRBIO_RING_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hf3fs_usrbio.h"
#include "pace.h"
#include "process.h"
#include "slots.h"

/* Values in [0, ring_len). In this protocol head is where a producer writes, tail where a consumer reads. */
struct usrbio_markers {
  _Atomic uint32_t sqe_head; /* stored by us; publishes the sqe and its args */
  _Atomic uint32_t sqe_tail; /* stored by the daemon; frees sqes */
  _Atomic uint32_t cqe_head; /* stored by the daemon; publishes cqes */
  _Atomic uint32_t cqe_tail; /* stored by us; frees cqes */
};

struct usrbio_args {
  uint8_t buf_id[16];
  uint64_t buf_off;
  uint64_t file_ino;
  uint64_t file_off;
  uint64_t len;
  uint64_t userdata;
};

struct usrbio_sqe {
  int32_t index;
  int32_t pad;
  uint64_t userdata;
};

_Static_assert(sizeof(struct usrbio_markers) == 16, "markers");
_Static_assert(sizeof(struct usrbio_args) == 56, "args");
_Static_assert(sizeof(struct usrbio_sqe) == 16, "sqe");
_Static_assert(sizeof(sem_t) == 32, "the completion semaphore is glibc's");

/* Layout for one size. ring_len = entries + 1: one slot stays empty to tell full from empty. */
struct usrbio_layout {
  uint32_t entries;
  uint32_t ring_len;
  size_t args_off;
  size_t cqes_off;
  size_t sqes_off;
  size_t sem_off;
};

size_t usrbio_ring_bytes(int entries);

/* Returns false if size_bytes is too small for a single entry. */
bool usrbio_ring_layout(size_t size_bytes, struct usrbio_layout *layout);

struct usrbio_registration;

struct usrbio_ring {
  _Atomic uint32_t users;          /* calls that use the ring, and whether it is closed */
  struct usrbio_ring *next_unused; /* under usrbio_lock */

  /* Shared with the daemon. */
  struct usrbio_markers *markers;
  struct usrbio_args *args;
  struct hf3fs_cqe *cqes;
  struct usrbio_sqe *sqes;
  sem_t *done_sem;   /* initialised by the daemon */
  /* How many completions the only sleeper lacks, after the semaphore: kv3fs posts no sooner. 0: posts for any. */
  _Atomic uint32_t *awaited;
  /* Behind it, kv3fs's too: a daemon that serves the ring copies ping to pong, and gap is for how many seconds one that
   * has ended should be waited for. */
  _Atomic uint32_t *ping, *pong, *gap;
  sem_t *submit_sem; /* one for all rings of a priority */

  /* Not shared. */
  uint32_t entries;
  uint32_t ring_len;
  bool for_read;
  struct usrbio_slots slots; /* args[i] is free, or busy from prep until its completion is reaped */
  _Atomic bool complained;   /* the daemon's completions have been logged as wrong */
  _Atomic uint32_t reaper;   /* generation of the process whose thread reaps, 0: none */
  _Atomic uint32_t untaken;  /* completions reaped since posts were last dropped: each had one post at most */
  _Atomic int sleepers;      /* threads that wait for a post, or are about to */
  _Atomic uint64_t pinged_ns; /* when ping was changed that was not copied yet, 0: it was never */
  struct usrbio_owner owner; /* the process that uses the ring */
  struct usrbio_pace pace;
  struct usrbio_registration *registration; /* null in tests */
};

/* Returns 0 or a negated errno. base must stay mapped until usrbio_ring_fini. */
int usrbio_ring_init(struct usrbio_ring *ring, void *base, size_t size_bytes, bool for_read, sem_t *submit_sem);
void usrbio_ring_fini(struct usrbio_ring *ring);

/*
 * A closed ring, to be initialised and opened. It is used again after it was closed and left, and never freed: whoever
 * still has its address may enter, which fails, or leads into the next ring at this address.
 */
struct usrbio_ring *usrbio_ring_new(void);
void usrbio_ring_open(struct usrbio_ring *ring);
void usrbio_ring_discard(struct usrbio_ring *ring); /* one that was not opened */

/*
 * Who uses a ring enters first, and leaves it alone after it has left. After close nobody enters, and
 * who is in is woken and must leave: the last one out frees what the ring has. close enters for the caller; it
 * returns false, and has not entered, if the ring is closed already.
 */
bool usrbio_ring_enter(struct usrbio_ring *ring);
void usrbio_ring_leave(struct usrbio_ring *ring);
bool usrbio_ring_close(struct usrbio_ring *ring);
bool usrbio_ring_closed(const struct usrbio_ring *ring);

/*
 * For a ring whose mount has ended: whether it is served nevertheless, because a daemon that was started again goes on with
 * the rings of the one before it, or may yet be. Asked now and then while nothing comes.
 */
bool usrbio_ring_may_be_served(struct usrbio_ring *ring);

/* The same, for certain: it waits for the daemon's answer, at most 30 seconds, or as long as the ring says if that is less. */
bool usrbio_ring_is_served(struct usrbio_ring *ring);

/* Enters the ring of ior. Returns null if there is none; else the caller leaves it. */
struct usrbio_ring *usrbio_ring_of(const struct hf3fs_ior *ior);

/*
 * Whether this process may use the ring: it made it, or whoever used it has ended. In a forked child of a parent
 * that lives it would take the parent's completions.
 */
bool usrbio_ring_ours(struct usrbio_ring *ring);

/* Returns the request's slot index, -EAGAIN if the ring is full, -EIO if the daemon broke the protocol. */
int usrbio_ring_push(struct usrbio_ring *ring, const struct usrbio_args *args);

/*
 * Moves up to room completions to out and frees their slots. Returns their number. -EIO: markers
 * out of range. *held_back says whether the daemon may have held requests back because there was no
 * completion space, and there is some now: it wants a post.
 */
int usrbio_ring_reap(struct usrbio_ring *ring, struct hf3fs_cqe *out, int room, bool *held_back);

/* Whether there are completions to reap. */
bool usrbio_ring_ready(const struct usrbio_ring *ring);

/*
 * Waits until a post of the daemon's or the time until_ns, of CLOCK_MONOTONIC. It may return early, and the
 * caller then looks for completions again, whatever the reason. missing is how many it has use for: while it is the only
 * sleeper, kv3fs does not wake it for fewer, unless no more are under way.
 *
 * The daemon posts after it has published completions, and spinning finds them without taking the post. No
 * thread sleeps while there are completions: it announces that it will, takes the posts that are left over
 * and looks once more. What is published later is posted later.
 */
void usrbio_ring_sleep(struct usrbio_ring *ring, uint32_t missing, uint64_t until_ns);

/* Drops posts that nobody took, if there may be many. Before reaping. */
void usrbio_ring_drop_old_posts(struct usrbio_ring *ring);

/* Wakes another thread for completions that the caller leaves behind: it may have taken the post for them. */
void usrbio_ring_pass_on(struct usrbio_ring *ring);

#endif
