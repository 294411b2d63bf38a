/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <string.h>

#include "linkname.h"
#include "log.h"
#include "registration.h"

static void fill(struct hf3fs_iov *iov,
                 uint8_t *base,
                 struct usrbio_registration *registration,
                 const uint8_t id[16],
                 const char *mount,
                 size_t size,
                 size_t block_size,
                 int numa) {
  iov->base = base;
  iov->iovh = registration;
  memcpy(iov->id, id, sizeof(iov->id));
  strcpy(iov->mount_point, mount);
  iov->size = size;
  iov->block_size = block_size;
  iov->numa = numa;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size, size_t block_size, int numa) {
  if (iov == NULL) {
    return -EINVAL;
  }
  memset(iov, 0, sizeof(*iov));
  if (!usrbio_mount_ok(hf3fs_mount_point) || size == 0 || block_size > size) {
    return -EINVAL;
  }
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_iov_suffix(suffix, block_size);
  struct usrbio_registration *r = NULL;
  int err = usrbio_registration_create(hf3fs_mount_point, suffix, size, numa, &r);
  if (err != 0) {
    return err;
  }
  fill(iov, usrbio_registration_base(r), r, usrbio_registration_id(r), hf3fs_mount_point, size, block_size, numa);
  return 0;
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
  memset(iov, 0, sizeof(*iov));
  if (id == NULL || !usrbio_mount_ok(hf3fs_mount_point) || size == 0) {
    return -EINVAL;
  }
  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_iov_suffix(suffix, block_size);
  struct usrbio_registration *r = NULL;
  int err = usrbio_registration_open(hf3fs_mount_point, id, suffix, size, numa, &r);
  if (err != 0) {
    return err;
  }
  fill(iov, usrbio_registration_base(r), r, id, hf3fs_mount_point, size, block_size, numa);
  return 0;
}

int hf3fs_iovwrap(struct hf3fs_iov *iov,
                  void *buf,
                  const uint8_t id[16],
                  const char *hf3fs_mount_point,
                  size_t size,
                  size_t block_size,
                  int numa) {
  if (iov == NULL || id == NULL || !usrbio_mount_ok(hf3fs_mount_point)) {
    return -EINVAL;
  }
  memset(iov, 0, sizeof(*iov));
  fill(iov, buf, NULL, id, hf3fs_mount_point, size, block_size, numa);
  return 0;
}

void hf3fs_iovunlink(struct hf3fs_iov *iov) {
  if (iov != NULL && iov->iovh != NULL) {
    usrbio_registration_unlink_shm(iov->iovh);
  }
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) {
  if (iov == NULL) {
    return;
  }
  if (iov->iovh == NULL) {
    usrbio_log(USRBIO_DEBUG, "iovdestroy: the iov owns nothing");
    return;
  }
  usrbio_registration_destroy(iov->iovh);
  iov->iovh = NULL;
  iov->base = NULL; /* so that a late hf3fs_prep_io is refused instead of naming unmapped memory */
}
