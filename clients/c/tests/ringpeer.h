/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Plays the daemon's half of a ring in a thread of the test: takes what was submitted and completes
 * each request with result = len. It computes the layout independently, from the specification.
 */

#ifndef RINGPEER_H
#define RINGPEER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ringpeer {
  uint8_t *base;
  uint32_t ring_len;
  sem_t *submit;
  bool backwards;  /* complete each batch last request first */
  bool mute;       /* never post the completion semaphore */
  bool thrifty;    /* post it when as many completions are there as are awaited, or nothing is left, as kv3fs does */
  _Atomic bool stop;
  _Atomic uint64_t served;
  pthread_t thread;
};

static inline _Atomic uint32_t *peer_marker(struct ringpeer *p, int i) {
  return (_Atomic uint32_t *)(void *)(p->base + 4 * i);
}

static inline sem_t *peer_sem(struct ringpeer *p) { return (sem_t *)(void *)(p->base + 16 + 96 * (size_t)p->ring_len); }

static inline void peer_init(struct ringpeer *p, void *base, size_t size, sem_t *submit) {
  memset(p, 0, sizeof(*p));
  p->base = base;
  p->ring_len = (uint32_t)((size - 4144) / 96);
  p->submit = submit;
  sem_init(peer_sem(p), 1, 0);
}

/* Appends one completion as given, valid or not. Returns false if there is no space. */
static inline bool peer_complete(struct ringpeer *p, int32_t index, int64_t result, uint64_t userdata) {
  uint32_t head = atomic_load(peer_marker(p, 2));
  uint32_t next = (head + 1) % p->ring_len;
  if (next == atomic_load(peer_marker(p, 3))) {
    return false;
  }
  uint8_t *cqe = p->base + 16 + 56 * (size_t)p->ring_len + 24 * (size_t)head;
  memcpy(cqe, &index, 4);
  memcpy(cqe + 8, &result, 8);
  memcpy(cqe + 16, &userdata, 8);
  atomic_store(peer_marker(p, 2), next);
  return true;
}

/* How many completions a sleeper has asked for; kv3fs's addition, after the semaphore. */
static inline _Atomic uint32_t *peer_awaited(struct ringpeer *p) {
  return (_Atomic uint32_t *)(void *)((uint8_t *)peer_sem(p) + 32);
}

static inline bool peer_is_awaited(struct ringpeer *p) {
  uint32_t there = (atomic_load(peer_marker(p, 2)) + p->ring_len - atomic_load(peer_marker(p, 3))) % p->ring_len;
  return !p->thrifty || there >= atomic_load(peer_awaited(p)) || atomic_load(peer_marker(p, 0)) == atomic_load(peer_marker(p, 1));
}

/* Serves everything that is queued now and returns how many there were. */
static inline uint32_t peer_serve(struct ringpeer *p) {
  uint32_t tail = atomic_load(peer_marker(p, 1));
  uint32_t head = atomic_load(peer_marker(p, 0));
  uint32_t count = (head + p->ring_len - tail) % p->ring_len;
  struct {
    int32_t index;
    int32_t pad;
    uint64_t userdata;
  } *batch = calloc(count + 1, sizeof(*batch));
  uint64_t *lens = calloc(count + 1, sizeof(*lens));
  if (batch == NULL || lens == NULL) {
    abort();
  }
  for (uint32_t i = 0; i < count; i++) {
    memcpy(&batch[i], p->base + 16 + 80 * (size_t)p->ring_len + 16 * (size_t)((tail + i) % p->ring_len), 16);
    memcpy(&lens[i], p->base + 16 + 56 * (size_t)batch[i].index + 40, 8);
  }
  atomic_store(peer_marker(p, 1), head);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t k = p->backwards ? count - 1 - i : i;
    if (!peer_complete(p, batch[k].index, (int64_t)lens[k], batch[k].userdata)) {
      abort(); /* the client guarantees completion space for everything outstanding */
    }
  }
  free(batch);
  free(lens);
  if (count > 0 && !p->mute && peer_is_awaited(p)) {
    sem_post(peer_sem(p));
  }
  atomic_fetch_add(&p->served, count);
  return count;
}

static inline void *peer_main(void *arg) {
  struct ringpeer *p = arg;
  while (!atomic_load(&p->stop)) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) {
      until.tv_sec++;
      until.tv_nsec -= 1000000000;
    }
    sem_timedwait(p->submit, &until);
    peer_serve(p);
  }
  return NULL;
}

static inline void peer_start(struct ringpeer *p) {
  if (pthread_create(&p->thread, NULL, peer_main, p) != 0) {
    abort();
  }
}

static inline void peer_stop(struct ringpeer *p) {
  atomic_store(&p->stop, true);
  pthread_join(p->thread, NULL);
}

#endif
