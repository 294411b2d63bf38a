/* SPDX-License-Identifier: Apache-2.0 */

#include "linkname.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int usrbio_uuid_new(uint8_t id[16]) {
  ssize_t n;
  do {
    n = getrandom(id, 16, 0);
  } while (n < 0 && errno == EINTR);
  if (n != 16) {
    return n < 0 ? -errno : -EIO;
  }
  id[6] = (uint8_t)((id[6] & 0x0f) | 0x40);
  id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
  return 0;
}

void usrbio_uuid_text(const uint8_t id[16], char text[USRBIO_UUID_TEXT_BYTES]) {
  static const char hex[] = "0123456789abcdef";
  char *p = text;
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      *p++ = '-';
    }
    *p++ = hex[id[i] >> 4];
    *p++ = hex[id[i] & 0x0f];
  }
  *p = '\0';
}

bool usrbio_mount_ok(const char *mount) {
  return mount != NULL && mount[0] != '\0' && strnlen(mount, USRBIO_MOUNT_BYTES) < USRBIO_MOUNT_BYTES;
}

void usrbio_iov_suffix(char suffix[USRBIO_SUFFIX_BYTES], size_t block_size) {
  suffix[0] = '\0';
  if (block_size > 0) {
    snprintf(suffix, USRBIO_SUFFIX_BYTES, ".b%zu", block_size);
  }
}

void usrbio_ior_suffix(char suffix[USRBIO_SUFFIX_BYTES],
                       bool for_read,
                       int io_depth,
                       int priority,
                       int timeout_ms,
                       uint64_t flags) {
  const char *prio = priority < 0 ? ".ph" : priority > 0 ? ".pl" : "";
  /* ".t" even for 0: without t, f and p, a 3FS daemon reads an option that does not exist. */
  int n = snprintf(suffix, USRBIO_SUFFIX_BYTES, ".%c%d%s.t%d", for_read ? 'r' : 'w', io_depth, prio, timeout_ms);
  if (flags == 0 || n < 0) {
    return;
  }
  char *p = suffix + n;
  *p++ = '.';
  *p++ = 'f';
  for (int bit = 63 - __builtin_clzll(flags); bit >= 0; bit--) {
    *p++ = (flags >> bit) & 1 ? '1' : '0';
  }
  *p = '\0';
}

void usrbio_iovs_path(char path[USRBIO_PATH_BYTES], const char *mount, const char *name) {
  snprintf(path, USRBIO_PATH_BYTES, "%s/3fs-virt/iovs/%s", mount, name);
}
