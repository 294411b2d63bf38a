/*
 * Writes and reads a part of a file as RTP-LLM's 3FS tier and the hf3fs SDK of Tair KVCM do, through
 * this repository's C library: a buffer in blocks of 1 MiB, a ring for this one operation, pieces of
 * 1 MiB that are submitted at once and waited for with an absolute deadline, the final name from the
 * beginning, and fsync.
 *
 *   replay write MOUNT PATH OFFSET LENGTH   the bytes are those of standard input
 *   replay read  MOUNT PATH OFFSET LENGTH   to standard output; status 3 if the file is too short
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

enum { PIECE = 1 << 20, SECONDS = 120 }; /* the engines wait for one or two seconds */

static void fail(const char *what, int error) {
  fprintf(stderr, "replay: %s: %s\n", what, strerror(error < 0 ? -error : error));
  exit(1);
}

static void make_parents(char *path) {
  for (char *at = path + 1; (at = strchr(at, '/')) != NULL; at++) {
    *at = 0;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) fail(path, errno);
    *at = '/';
  }
}

int main(int argc, char **argv) {
  if (argc != 6) fail("usage: replay write|read MOUNT PATH OFFSET LENGTH", EINVAL);
  const bool reads = strcmp(argv[1], "read") == 0;
  const char *mount = argv[2];
  char *path = argv[3];
  const size_t offset = strtoull(argv[4], NULL, 10), length = strtoull(argv[5], NULL, 10);
  const int pieces = (int)((length + PIECE - 1) / PIECE);

  if (reads) {
    struct stat st;
    if (stat(path, &st) != 0) fail(path, errno);
    if ((size_t)st.st_size < offset + length) return 3;
  } else {
    make_parents(path);
  }
  const int fd = open(path, reads ? O_RDWR : O_RDWR | O_CREAT, 0666);
  if (fd < 0) fail(path, errno);
  int error = hf3fs_reg_fd(fd, 0);
  if (error > 0) fail("hf3fs_reg_fd", error);

  struct hf3fs_iov iov;
  if ((error = hf3fs_iovcreate(&iov, mount, (size_t)pieces * PIECE, reads ? 0 : PIECE, -1)) != 0) fail("hf3fs_iovcreate", error);
  if (!reads && fread(iov.base, 1, length, stdin) != length) fail("read the bytes", EIO);

  struct hf3fs_ior ior;
  if ((error = hf3fs_iorcreate4(&ior, mount, pieces + 1, reads, 0, 0, -1, 0)) != 0) fail("hf3fs_iorcreate4", error);
  for (size_t done = 0; done < length; done += PIECE) {
    const size_t size = length - done < PIECE ? length - done : PIECE;
    if ((error = hf3fs_prep_io(&ior, &iov, reads, iov.base + done, fd, offset + done, size, NULL)) < 0) fail("hf3fs_prep_io", error);
  }
  if ((error = hf3fs_submit_ios(&ior)) != 0) fail("hf3fs_submit_ios", error);
  struct hf3fs_cqe *cqes = calloc((size_t)pieces, sizeof *cqes);
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += SECONDS;
  const int n = hf3fs_wait_for_ios(&ior, cqes, pieces, pieces, &until);
  if (n != pieces) fail("hf3fs_wait_for_ios", n < 0 ? n : ETIMEDOUT);
  for (int i = 0; i < n; i++)
    if (cqes[i].result < 0) fail("a request", (int)cqes[i].result);
  free(cqes);
  hf3fs_iordestroy(&ior);

  if (reads) {
    if (fwrite(iov.base, 1, length, stdout) != length || fflush(stdout) != 0) fail("write the bytes", errno);
  } else if (fsync(fd) != 0) {
    fail("fsync", errno);
  }
  hf3fs_iovdestroy(&iov);
  hf3fs_dereg_fd(fd);
  close(fd);
  return 0;
}
