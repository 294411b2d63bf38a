/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <string.h>

#include "linkname.h"
#include "log.h"
#include "process.h"
#include "registration.h"

/* What describes the buffer, copied first: arguments may be parts of the struct that is filled. */
struct description {
  uint8_t id[16];
  char mount[USRBIO_MOUNT_BYTES];
  size_t size;
  size_t block_size;
  int numa;
};

static bool describe(
    struct description *d, const uint8_t id[16], const char *mount, size_t size, size_t block_size, int numa) {
  if (!usrbio_mount_ok(mount)) {
    return false;
  }
  memset(d, 0, sizeof(*d));
  if (id != NULL) {
    memcpy(d->id, id, sizeof(d->id));
  }
  strcpy(d->mount, mount);
  d->size = size;
  d->block_size = block_size;
  d->numa = numa;
  return true;
}

static void fill(struct hf3fs_iov *iov,
                 uint8_t *base,
                 struct usrbio_registration *registration,
                 const uint8_t id[16],
                 const struct description *d) {
  memset(iov, 0, sizeof(*iov));
  iov->base = base;
  iov->iovh = registration;
  memcpy(iov->id, id, sizeof(iov->id));
  strcpy(iov->mount_point, d->mount);
  iov->size = d->size;
  iov->block_size = d->block_size;
  iov->numa = d->numa;
}

static int create(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size, int numa, bool reserve) {
  if (iov == NULL) {
    return -EINVAL;
  }
  struct description d;
  bool ok = describe(&d, NULL, mount, size, block_size, numa);
  memset(iov, 0, sizeof(*iov));
  if (!ok || size == 0 || block_size > size) {
    return -EINVAL;
  }
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_iov_suffix(suffix, block_size);
  struct usrbio_registration *r = NULL;
  struct usrbio_memory memory = {.size_bytes = size, .numa = numa, .reserve = reserve};
  int err = usrbio_registration_create(d.mount, suffix, &memory, &r);
  if (err != 0) {
    return err;
  }
  fill(iov, usrbio_registration_base(r), r, usrbio_registration_id(r), &d);
  return 0;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size, size_t block_size, int numa) {
  return create(iov, hf3fs_mount_point, size, block_size, numa, false);
}

int hf3fs_iovcreate_reserved(
    struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size, size_t block_size, int numa) {
  return create(iov, hf3fs_mount_point, size, block_size, numa, true);
}

int hf3fs_iovopen(struct hf3fs_iov *iov,
                  const uint8_t id[16],
                  const char *hf3fs_mount_point,
                  size_t size,
                  size_t block_size,
                  int numa) {
  if (iov == NULL) {
    return -EINVAL;
  }
  struct description d;
  bool ok = describe(&d, id, hf3fs_mount_point, size, block_size, numa);
  memset(iov, 0, sizeof(*iov));
  if (id == NULL || !ok || size == 0) {
    return -EINVAL;
  }
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_iov_suffix(suffix, block_size);
  struct usrbio_registration *r = NULL;
  int err = usrbio_registration_open(d.mount, d.id, suffix, size, numa, &r);
  if (err != 0) {
    return err;
  }
  fill(iov, usrbio_registration_base(r), r, d.id, &d);
  return 0;
}

int hf3fs_iovwrap(struct hf3fs_iov *iov,
                  void *buf,
                  const uint8_t id[16],
                  const char *hf3fs_mount_point,
                  size_t size,
                  size_t block_size,
                  int numa) {
  struct description d;
  if (iov == NULL || id == NULL || !describe(&d, id, hf3fs_mount_point, size, block_size, numa)) {
    return -EINVAL;
  }
  fill(iov, buf, NULL, d.id, &d);
  return 0;
}

int hf3fs_iovregister(struct hf3fs_iov *iov, const char *shm_name) {
  if (iov == NULL || iov->iovh != NULL || iov->base == NULL || shm_name == NULL || !usrbio_mount_ok(iov->mount_point)) {
    return -EINVAL;
  }
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_iov_suffix(suffix, iov->block_size);
  struct usrbio_registration *r = NULL;
  int err = usrbio_registration_add(iov->mount_point, (const uint8_t *)iov->id, suffix, shm_name, &r);
  if (err == 0) {
    iov->iovh = r;
  }
  return err;
}

int hf3fs_iovprobe(const struct hf3fs_iov *iov) {
  return iov == NULL || iov->iovh == NULL ? -EINVAL : usrbio_registration_probe(iov->iovh);
}

int hf3fs_iovrenew(struct hf3fs_iov *iov) {
  return iov == NULL || iov->iovh == NULL ? -EINVAL : usrbio_registration_renew(iov->iovh);
}

void hf3fs_iovunlink(struct hf3fs_iov *iov) {
  if (iov != NULL && iov->iovh != NULL && !usrbio_in_parents_memory()) {
    usrbio_registration_unlink_shm(iov->iovh);
  }
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) {
  if (iov == NULL || usrbio_in_parents_memory()) {
    return;
  }
  struct usrbio_registration *r = __atomic_exchange_n(&iov->iovh, NULL, __ATOMIC_ACQ_REL);
  if (r == NULL) {
    usrbio_log(USRBIO_DEBUG, "iovdestroy: the iov owns nothing, or is destroyed already");
    return;
  }
  usrbio_registration_remove(r);
  if (usrbio_registration_base(r) != NULL) {
    iov->base = NULL; /* so that a late hf3fs_prep_io is refused instead of naming unmapped memory */
  }
  usrbio_registration_free(r);
}
