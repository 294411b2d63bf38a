/* SPDX-License-Identifier: Apache-2.0 */

#include <limits.h>

#include "check.h"
#include "linkname.h"
#include "log.h"

static void ior(const char *want, bool for_read, int depth, int priority, int timeout, uint64_t flags) {
  char got[USRBIO_SUFFIX_BYTES];
  usrbio_ior_suffix(got, for_read, depth, priority, timeout, flags);
  CHECK_STR(got, want);
}

int main(void) {
  ior(".r0.t0", true, 0, 0, 0, 0);
  ior(".w32.ph.t0", false, 32, -1, 0, 0);
  ior(".r-8.t5", true, -8, 0, 5, 0);
  ior(".r0.pl.t0", true, 0, 7, 0, 0);
  ior(".r0.t0.f1", true, 0, 0, 0, 1);
  ior(".r0.t0.f10", true, 0, 0, 0, 2);
  ior(".r0.t0.f11", true, 0, 0, 0, 3);
  char longest[USRBIO_SUFFIX_BYTES];
  usrbio_ior_suffix(longest, false, INT_MIN, 1, INT_MAX, UINT64_MAX);
  CHECK(strncmp(longest, ".w-2147483648.pl.t2147483647.f1111", 34) == 0);
  CHECK_EQ(strlen(longest), 28 + 2 + 64);

  char suffix[USRBIO_SUFFIX_BYTES];
  usrbio_iov_suffix(suffix, 0);
  CHECK_STR(suffix, "");
  usrbio_iov_suffix(suffix, 1048576);
  CHECK_STR(suffix, ".b1048576");

  const uint8_t id[16] = {0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0xff};
  char text[USRBIO_UUID_TEXT_BYTES];
  usrbio_uuid_text(id, text);
  CHECK_STR(text, "123e4567-e89b-12d3-a456-4266141740ff");

  uint8_t a[16], b[16];
  CHECK_EQ(usrbio_uuid_new(a), 0);
  CHECK_EQ(usrbio_uuid_new(b), 0);
  CHECK(memcmp(a, b, 16) != 0);
  CHECK_EQ(a[6] >> 4, 4);
  CHECK_EQ(a[8] >> 6, 2);

  char mount[300];
  memset(mount, 'm', sizeof(mount));
  mount[256] = '\0';
  CHECK(!usrbio_mount_ok(mount));
  mount[255] = '\0';
  CHECK(usrbio_mount_ok(mount));
  CHECK(!usrbio_mount_ok(""));
  CHECK(!usrbio_mount_ok(NULL));

  CHECK_EQ(usrbio_log_level_of("INFO"), USRBIO_INFO);
  CHECK_EQ(usrbio_log_level_of("ERR"), USRBIO_ERROR);
  CHECK_EQ(usrbio_log_level_of("nonsense"), USRBIO_WARN);
  CHECK_EQ(usrbio_log_level_of(NULL), USRBIO_WARN);
  return 0;
}
