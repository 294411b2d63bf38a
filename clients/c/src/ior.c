/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "linkname.h"
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

static void destroy(struct usrbio_ring *ring) {
  if (ring->registration != NULL) {
    usrbio_registration_destroy(ring->registration);
  }
  if (ring->submit_sem != NULL) {
    sem_close(ring->submit_sem);
  }
  usrbio_ring_fini(ring);
  free(ring);
}

static int build(struct usrbio_ring *ring, const char *mount, const struct ring_options *o) {
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_ior_suffix(suffix, o->for_read, o->io_depth, o->priority, o->timeout_ms, o->flags);
  size_t size_bytes = usrbio_ring_bytes(o->entries);

  struct usrbio_registration *r = NULL;
  int err = usrbio_registration_create(mount, suffix, size_bytes, o->numa, &r);
  if (err != 0) {
    return err;
  }
  /* The daemon has mapped the object, so its name can go: if we are killed, nothing is left in /dev/shm. */
  usrbio_registration_unlink_shm(r);

  sem_t *submit_sem = NULL;
  err = usrbio_submitsem_open(mount, o->priority, &submit_sem);
  if (err == 0) {
    err = usrbio_ring_init(ring, usrbio_registration_base(r), size_bytes, o->for_read, submit_sem);
    if (err != 0) {
      sem_close(submit_sem);
    }
  }
  if (err != 0) {
    usrbio_registration_destroy(r);
    return err;
  }
  ring->registration = r;
  return 0;
}

static int create(struct hf3fs_ior *ior, const char *mount, const struct ring_options *o) {
  if (ior == NULL) {
    return -EINVAL;
  }
  memset(ior, 0, sizeof(*ior));
  /* The daemon also refuses io_depth > entries, but only after everything has been built. */
  if (!usrbio_mount_ok(mount) || o->entries < 1 || o->io_depth > o->entries || o->timeout_ms < 0) {
    return -EINVAL;
  }
  struct usrbio_ring *ring = calloc(1, sizeof(*ring));
  if (ring == NULL) {
    return -ENOMEM;
  }
  int err = build(ring, mount, o);
  if (err != 0) {
    free(ring);
    return err;
  }
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
  return create(ior, hf3fs_mount_point, &o);
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
  return create(ior, hf3fs_mount_point, &o);
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
  if (ior == NULL || ior->iorh == NULL) {
    return;
  }
  destroy(ior->iorh);
  ior->iorh = NULL;
  ior->iov.iovh = NULL;
  ior->iov.base = NULL;
}

int hf3fs_io_entries(const struct hf3fs_ior *ior) {
  if (ior == NULL || ior->iorh == NULL) {
    return -EINVAL;
  }
  const struct usrbio_ring *ring = ior->iorh;
  return (int)ring->entries;
}
