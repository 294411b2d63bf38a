/* SPDX-License-Identifier: Apache-2.0 */

/* What hardlink and punchhole refuse themselves; tests on a mount check what they send. */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "hf3fs_usrbio.h"

int main(void) {
  size_t start[1] = {0}, end[1] = {4096};
  CHECK_EQ(hf3fs_punchhole(0, -1, start, end, 0), EINVAL);
  CHECK_EQ(hf3fs_punchhole(0, 1001, start, end, 0), EINVAL);
  CHECK_EQ(hf3fs_punchhole(0, 1, NULL, end, 0), EINVAL);
  CHECK_EQ(hf3fs_punchhole(-1, 1, start, end, 0), EBADF);

  char file[] = "/tmp/usrbio-ioctl-XXXXXX";
  int fd = mkstemp(file);
  CHECK(fd >= 0);
  CHECK_EQ(hf3fs_punchhole(fd, 1, start, end, 0), ENOTTY);
  CHECK_EQ(hf3fs_hardlink(NULL, "x"), EINVAL);
  CHECK_EQ(hf3fs_hardlink(file, NULL), EINVAL);
  CHECK_EQ(hf3fs_hardlink("/no/such", "/tmp/x"), ENOENT);
  CHECK_EQ(hf3fs_hardlink(file, "/no/such/dir"), ENOENT);
  CHECK_EQ(hf3fs_hardlink(file, "/tmp/"), ENOENT);
  CHECK_EQ(hf3fs_hardlink(file, ""), ENOENT);
  CHECK_EQ(hf3fs_hardlink(file, "/proc/x"), EXDEV);
  CHECK_EQ(hf3fs_hardlink(file, "/tmp/x"), ENOTTY); /* reaches the file system */
  CHECK_EQ(chdir("/tmp"), 0);
  CHECK_EQ(hf3fs_hardlink(file, "bare-name"), ENOTTY);
  char name[300];
  memset(name, 'n', sizeof(name));
  name[256] = '\0';
  CHECK_EQ(hf3fs_hardlink(file, name), ENAMETOOLONG);
  name[255] = '\0';
  CHECK_EQ(hf3fs_hardlink(file, name), ENOTTY);
  close(fd);
  unlink(file);
  return 0;
}
