/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "hf3fs_usrbio.h"
#include "mountpoint.h"

#define HF3FS " rw,nosuid shared:7 - fuse.hf3fs hf3fs.stage rw,user_id=0\n"
#define OTHER " rw - ext4 /dev/sda1 rw\n"

static const char *without_virt = ""; /* the only mount without a 3fs-virt */
static int asked;

static bool has_virt(const char *mount) {
  asked++;
  return strcmp(mount, without_virt) != 0;
}

static void find(const char *want, const char *path, bool any_type, const char *mountinfo) {
  FILE *f = fmemopen((void *)(uintptr_t)mountinfo, strlen(mountinfo), "r");
  CHECK(f != NULL);
  char *got = usrbio_mountpoint_find(f, path, any_type, has_virt);
  fclose(f);
  CHECK_STR(got == NULL ? "(none)" : got, want);
  free(got);
}

int main(void) {
  const char *plain = "22 1 0:20 / / rw - ext4 /dev/root rw\n"
                      "43 27 0:40 / /mnt/3fs" HF3FS "44 27 0:41 / /mnt/3fs/deep" HF3FS "45 27 0:42 / /srv" OTHER;
  find("/mnt/3fs", "/mnt/3fs/a/b", false, plain);
  find("/mnt/3fs", "/mnt/3fs", false, plain);
  find("/mnt/3fs/deep", "/mnt/3fs/deep/x", false, plain);
  find("/mnt/3fs", "/mnt/3fs/deeper", false, plain);
  find("(none)", "/mnt/3fs2", false, plain);
  find("(none)", "/srv/x", false, plain);
  find("/srv", "/srv/x", true, plain);

  /* Only the mount that would be chosen is checked, and none that does not contain the path. */
  asked = 0;
  find("(none)", "/elsewhere", false, plain);
  CHECK_EQ(asked, 0);

  without_virt = "/mnt/3fs/deep";
  find("/mnt/3fs", "/mnt/3fs/deep/x", false, plain);
  without_virt = "";

  /* A container's two bind mounts. */
  without_virt = "/data";
  find("/data", "/data/x", false, "1 2 0:40 /sub /data" HF3FS "3 2 0:40 /3fs-virt /data/3fs-virt" HF3FS);
  find("(none)", "/data/x", false, "1 2 0:40 /sub /data" HF3FS);
  without_virt = "";
  find("/", "/x", false, "1 2 0:40 / /3fs-virt" HF3FS);
  find("/", "/x", false, "1 2 0:40 / /" HF3FS);

  find("/mnt/a b", "/mnt/a b/f", false, "1 2 0:40 / /mnt/a\\040b" HF3FS);
  find("(none)", "/mnt/3fs/a", false, "short line\n\n1 2 0:40 / /mnt/3fs - fuse.hf3fs s rw\n");
  find("/mnt/3fs", "/mnt/3fs/a", false, "1 2 0:40 / /mnt/3fs rw - fuse.hf3fs s rw\n"
                                        "1  2 0:40 /  /mnt/3fs rw,x a:1 - fuse.hf3fs s rw");
  char longline[12000];
  memset(longline, 'o', sizeof(longline));
  memcpy(longline, "1 2 0:40 / /m x:1 y:2 ", 22);
  strcpy(longline + 11000, " - fuse.hf3fs s rw\n");
  find("/m", "/m/f", false, longline);

  char buf[8] = "before";
  CHECK_EQ(hf3fs_extract_mount_point(buf, sizeof(buf), "/proc/self/no-such-file"), -1);
  CHECK_EQ(errno, ENOENT);
  CHECK_EQ(hf3fs_extract_mount_point(buf, sizeof(buf), "/proc/self/status"), -1);
  CHECK_EQ(hf3fs_extract_mount_point(buf, sizeof(buf), NULL), -1);
  CHECK_STR(buf, "before");
  return 0;
}
