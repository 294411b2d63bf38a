/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "linkname.h"
#include "log.h"
#include "process.h"
#include "registration.h"
#include "ring.h"
#include "submitsem.h"

struct ring_options {
  int entries;
  bool for_read;
  int io_depth;
  int priority;
  int timeout_ms;
  int numa;
  uint64_t flags;
};

size_t hf3fs_ior_size(int entries) { return usrbio_ring_bytes(entries); }

/* The daemon's semaphore for a priority. */
struct sem_call {
  struct usrbio_call call;
  int priority;
  int err;
  sem_t *sem;
};

static void run_open_sem(struct usrbio_daemon *d, struct usrbio_call *call) {
  struct sem_call *c = (struct sem_call *)(void *)call;
  c->err = usrbio_submitsem_open(usrbio_daemon_mount(d), c->priority, &c->sem);
}

static void close_sem_late(struct usrbio_daemon *d, struct usrbio_call *call) {
  (void)d;
  struct sem_call *c = (struct sem_call *)(void *)call;
  if (c->sem != NULL) {
    sem_close(c->sem);
  }
  free(c);
}

static int open_sem(struct usrbio_daemon *d, int priority, sem_t **out) {
  struct sem_call *c = calloc(1, sizeof(*c));
  if (c == NULL) {
    return -ENOMEM;
  }
  c->call.run = run_open_sem;
  c->call.late = close_sem_late;
  c->priority = priority;
  int err = usrbio_ask(d, &c->call);
  if (err == 0) {
    err = c->err;
    *out = c->sem;
    free(c);
  }
  return err;
}

static int build(struct usrbio_ring *ring, const char *mount, const struct ring_options *o) {
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_ior_suffix(suffix, o->for_read, o->io_depth, o->priority, o->timeout_ms, o->flags);
  /* Reserved, because the first request would be a SIGBUS where /dev/shm is full. */
  struct usrbio_memory memory = {.size_bytes = usrbio_ring_bytes(o->entries), .numa = o->numa, .reserve = true};

  struct usrbio_registration *r = NULL;
  int err = usrbio_registration_create(mount, suffix, &memory, &r);
  if (err != 0) {
    return err;
  }
  /* The daemon has mapped the object, so its name can go: if we are killed, nothing is left in /dev/shm. */
  usrbio_registration_unlink_shm(r);

  sem_t *submit_sem = NULL;
  err = open_sem(usrbio_registration_daemon(r), o->priority, &submit_sem);
  if (err == 0) {
    err = usrbio_ring_init(ring, usrbio_registration_base(r), memory.size_bytes, o->for_read, submit_sem);
    if (err != 0) {
      sem_close(submit_sem);
    }
  }
  if (err != 0) {
    usrbio_registration_remove(r);
    usrbio_registration_free(r);
    return err;
  }
  ring->registration = r;
  return 0;
}

/* where: the mount, if it is not to be found by hf3fs_mount_point. */
static int create(struct hf3fs_ior *ior, const char *hf3fs_mount_point, const char *where, const struct ring_options *o) {
  if (ior == NULL) {
    return -EINVAL;
  }
  /* A copy, because the string may be in the struct that is filled. */
  char mount[USRBIO_MOUNT_BYTES] = "";
  if (usrbio_mount_ok(hf3fs_mount_point)) {
    strcpy(mount, hf3fs_mount_point);
  }
  memset(ior, 0, sizeof(*ior));
  /* The daemon also refuses io_depth > entries, but only after everything has been built. */
  if (mount[0] == '\0' || o->entries < 1 || o->io_depth > o->entries || o->timeout_ms < 0) {
    return -EINVAL;
  }
  struct usrbio_ring *ring = usrbio_ring_new();
  if (ring == NULL) {
    return -ENOMEM;
  }
  int err = build(ring, where == NULL ? mount : where, o);
  if (err != 0) {
    usrbio_ring_discard(ring);
    return err;
  }
  usrbio_ring_open(ring);
  ior->iov.base = usrbio_registration_base(ring->registration);
  ior->iov.iovh = ring->registration;
  memcpy(ior->iov.id, usrbio_registration_id(ring->registration), sizeof(ior->iov.id));
  strcpy(ior->iov.mount_point, mount);
  ior->iov.size = usrbio_ring_bytes(o->entries);
  ior->iov.numa = o->numa;
  ior->iorh = ring;
  strcpy(ior->mount_point, mount);
  ior->for_read = o->for_read;
  ior->io_depth = o->io_depth;
  ior->priority = o->priority;
  ior->timeout = o->timeout_ms;
  ior->flags = o->flags;
  return 0;
}

int hf3fs_iorcreate(struct hf3fs_ior *ior,
                    const char *hf3fs_mount_point,
                    int entries,
                    bool for_read,
                    int io_depth,
                    int numa) {
  return hf3fs_iorcreate3(ior, hf3fs_mount_point, entries, for_read, io_depth, 0, 0, numa);
}

int hf3fs_iorcreate2(struct hf3fs_ior *ior,
                     const char *hf3fs_mount_point,
                     int entries,
                     bool for_read,
                     int io_depth,
                     int priority,
                     int numa) {
  return hf3fs_iorcreate3(ior, hf3fs_mount_point, entries, for_read, io_depth, priority, 0, numa);
}

int hf3fs_iorcreate3(struct hf3fs_ior *ior,
                     const char *hf3fs_mount_point,
                     int entries,
                     bool for_read,
                     int io_depth,
                     int priority,
                     int timeout,
                     int numa) {
  struct ring_options o = {.entries = entries,
                           .for_read = for_read,
                           .io_depth = io_depth,
                           .priority = priority,
                           .timeout_ms = timeout,
                           .numa = numa};
  return create(ior, hf3fs_mount_point, NULL, &o);
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior,
                     const char *hf3fs_mount_point,
                     int entries,
                     bool for_read,
                     int io_depth,
                     int timeout,
                     int numa,
                     uint64_t flags) {
  struct ring_options o = {.entries = entries,
                           .for_read = for_read,
                           .io_depth = io_depth,
                           .timeout_ms = timeout,
                           .numa = numa,
                           .flags = flags};
  return create(ior, hf3fs_mount_point, NULL, &o);
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
  if (ior == NULL || usrbio_in_parents_memory()) {
    return;
  }
  struct usrbio_ring *ring = __atomic_exchange_n(&ior->iorh, NULL, __ATOMIC_ACQ_REL);
  if (ring == NULL || !usrbio_ring_close(ring)) {
    usrbio_log(USRBIO_DEBUG, "iordestroy: the ring is destroyed already");
    return;
  }
  ior->iov.iovh = NULL;
  ior->iov.base = NULL;
  usrbio_registration_remove(ring->registration);
  usrbio_ring_leave(ring);
}

int hf3fs_iorprobe(const struct hf3fs_ior *ior) {
  struct usrbio_ring *ring = usrbio_ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  int err = usrbio_registration_probe(ring->registration);
  if (err == -ENOTCONN && usrbio_ring_is_served(ring)) {
    err = 0;
  }
  usrbio_ring_leave(ring);
  return err;
}

int hf3fs_iorrenew(struct hf3fs_ior *ior) {
  struct usrbio_ring *ring = usrbio_ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  struct ring_options o = {.entries = (int)ring->entries,
                           .for_read = ior->for_read,
                           .io_depth = ior->io_depth,
                           .priority = ior->priority,
                           .timeout_ms = ior->timeout,
                           .numa = ior->iov.numa,
                           .flags = ior->flags};
  bool ours = usrbio_may_take(&ring->owner);
  /* The absolute path, since the working directory may be another one now. It stays valid. */
  const char *where = usrbio_daemon_mount(usrbio_registration_daemon(ring->registration));
  usrbio_ring_leave(ring);
  if (!ours) {
    return -EBUSY;
  }
  struct hf3fs_ior renewed;
  int err = create(&renewed, ior->mount_point, where, &o);
  if (err != 0) {
    return err;
  }
  hf3fs_iordestroy(ior);
  ior->iov = renewed.iov;
  __atomic_store_n(&ior->iorh, renewed.iorh, __ATOMIC_RELEASE);
  return 0;
}

int hf3fs_io_entries(const struct hf3fs_ior *ior) {
  struct usrbio_ring *ring = usrbio_ring_of(ior);
  if (ring == NULL) {
    return -EINVAL;
  }
  int entries = (int)ring->entries;
  usrbio_ring_leave(ring);
  return entries;
}
