/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fdtable.h"
#include "hf3fs_usrbio.h"

static int temp_file(uint64_t *ino) {
  char path[] = "/tmp/usrbio-fdtable-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  CHECK_EQ(unlink(path), 0);
  struct stat st;
  CHECK_EQ(fstat(fd, &st), 0);
  *ino = st.st_ino;
  return fd;
}

static void expect(int fd, uint64_t ino, int mode) {
  struct usrbio_file file;
  CHECK_EQ(usrbio_fdtable_find(fd, &file), 0);
  CHECK_EQ(file.ino, ino);
  CHECK_EQ(file.access_mode, mode);
}

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static void both_numbers_of_either_sign(void) {
  uint64_t ino;
  struct usrbio_file none;
  int fd = temp_file(&ino);
  CHECK_EQ(usrbio_fdtable_find(fd, &none), -EBADF);
  int handle = usrbio_fdtable_add(fd);
  CHECK(handle < 0);
  expect(fd, ino, O_RDWR);
  expect(handle, ino, O_RDWR);
  expect(-handle, ino, O_RDWR);
  expect(-fd, ino, O_RDWR);
  CHECK_EQ(usrbio_fdtable_add(fd), EINVAL);
  CHECK_EQ(usrbio_fdtable_add(-handle), EINVAL);

  CHECK(usrbio_fdtable_remove(handle));
  CHECK(!is_open(-handle));
  CHECK(is_open(fd));
  CHECK_EQ(usrbio_fdtable_find(fd, &none), -EBADF);
  CHECK(!usrbio_fdtable_remove(fd));
  close(fd);
}

static void closed_without_deregistration(void) {
  uint64_t old_ino, new_ino;
  int fd = temp_file(&old_ino);
  int handle = usrbio_fdtable_add(fd);
  CHECK(handle < 0);
  close(fd);
  expect(fd, old_ino, O_RDWR); /* I/O on the old file continues */

  int again = temp_file(&new_ino);
  CHECK_EQ(again, fd);
  CHECK_EQ(usrbio_fdtable_add(again), EINVAL);
  hf3fs_dereg_fd(again);
  CHECK(!is_open(-handle));
  CHECK(usrbio_fdtable_add(again) < 0);
  expect(again, new_ino, O_RDWR);
  close(again);
  hf3fs_dereg_fd(again); /* also frees the number after the close */
  struct usrbio_file none;
  CHECK_EQ(usrbio_fdtable_find(again, &none), -EBADF);
}

static void duplicate_avoids_taken_numbers(void) {
  uint64_t ino_a, ino_b;
  int a = temp_file(&ino_a);
  int handle_a = usrbio_fdtable_add(a);
  CHECK(handle_a < 0);
  int b = temp_file(&ino_b);
  close(a); /* the next dup would get its number */
  int handle_b = usrbio_fdtable_add(b);
  CHECK(handle_b < 0 && handle_b != -a);
  expect(a, ino_a, O_RDWR);
  expect(b, ino_b, O_RDWR);
  hf3fs_dereg_fd(a);
  hf3fs_dereg_fd(b);
  close(b);
}

static void foreign_file_under_our_number_survives(void) {
  uint64_t ino, other_ino;
  int fd = temp_file(&ino);
  int handle = usrbio_fdtable_add(fd);
  int other = temp_file(&other_ino);
  CHECK_EQ(dup2(other, -handle), -handle); /* a program that closes everything and reuses it */
  hf3fs_dereg_fd(fd);
  CHECK(is_open(-handle));
  close(-handle);
  close(other);
  close(fd);
}

/* Also where the program has closed everything and opened the same file again. */
static void same_file_under_our_number_survives(void) {
  char path[] = "/tmp/usrbio-fdtable-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  int handle = usrbio_fdtable_add(fd);
  close(fd);
  close(-handle);
  int again = open(path, O_RDWR);
  if (again != -handle) {
    CHECK_EQ(dup2(again, -handle), -handle);
    close(again);
  }
  hf3fs_dereg_fd(fd);
  CHECK(is_open(-handle));
  close(-handle);
  CHECK_EQ(unlink(path), 0);
}

/* Two registrations of one open file close their own duplicates. */
static void one_open_file_twice(void) {
  uint64_t ino;
  int fd = temp_file(&ino);
  int twin = dup(fd);
  int a = usrbio_fdtable_add(fd);
  int b = usrbio_fdtable_add(twin);
  CHECK(a < 0 && b < 0);
  hf3fs_dereg_fd(fd);
  CHECK(!is_open(-a));
  hf3fs_dereg_fd(twin);
  CHECK(!is_open(-b));
  close(fd);
  close(twin);
}

static void modes(void) {
  int rd = open("/dev/null", O_RDONLY), wr = open("/dev/null", O_WRONLY);
  struct stat st;
  CHECK_EQ(fstat(rd, &st), 0);
  CHECK(usrbio_fdtable_add(rd) < 0);
  CHECK(usrbio_fdtable_add(wr) < 0);
  expect(rd, st.st_ino, O_RDONLY);
  expect(wr, st.st_ino, O_WRONLY);
  hf3fs_dereg_fd(rd);
  hf3fs_dereg_fd(wr);
  close(rd);
  close(wr);
}

static void bounds(void) {
  struct usrbio_file none;
  CHECK_EQ(usrbio_fdtable_find(USRBIO_FD_LIMIT, &none), -EINVAL);
  CHECK_EQ(usrbio_fdtable_find(INT_MIN, &none), -EINVAL);
  CHECK_EQ(usrbio_fdtable_find(-USRBIO_FD_LIMIT, &none), -EINVAL);
  CHECK_EQ(usrbio_fdtable_find(USRBIO_FD_LIMIT - 1, &none), -EBADF);
  CHECK_EQ(usrbio_fdtable_add(-1), EBADF);
  CHECK_EQ(usrbio_fdtable_add(USRBIO_FD_LIMIT), EBADF);
  CHECK_EQ(usrbio_fdtable_add(INT_MAX), EBADF);
  CHECK_EQ(usrbio_fdtable_add(1999), EBADF); /* not open */
  hf3fs_dereg_fd(INT_MIN);
  hf3fs_dereg_fd(12345);

  int fd = open("/dev/null", O_RDONLY);
  CHECK_EQ(hf3fs_reg_fd(fd, 0), EBADF); /* not hf3fs */
  CHECK(!hf3fs_is_hf3fs(fd));
  CHECK(!hf3fs_is_hf3fs(-1));
  struct rlimit was, none_left;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
  none_left = was;
  none_left.rlim_cur = (rlim_t)fd + 1;
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  CHECK_EQ(usrbio_fdtable_add(fd), EMFILE);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
  close(fd);
}

/* Readers run without a lock: they see one registration or the other, never a mixture. */
static _Atomic bool stop;
static int contested;
static uint64_t ino_rdwr, ino_rdonly;

static void *reader(void *arg) {
  (void)arg;
  struct usrbio_file file;
  while (!atomic_load(&stop)) {
    if (usrbio_fdtable_find(contested, &file) == 0) {
      CHECK(file.ino == ino_rdwr ? file.access_mode == O_RDWR : file.ino == ino_rdonly && file.access_mode == O_RDONLY);
    }
  }
  return NULL;
}

static void lookups_during_changes(void) {
  contested = 300;
  int a = temp_file(&ino_rdwr);
  int b = open("/dev/null", O_RDONLY);
  struct stat st;
  CHECK_EQ(fstat(b, &st), 0);
  ino_rdonly = st.st_ino;
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, reader, NULL), 0);
  for (int i = 0; i < 2000; i++) {
    CHECK_EQ(dup2(i % 2 ? a : b, contested), contested);
    CHECK(usrbio_fdtable_add(contested) < 0);
    hf3fs_dereg_fd(contested);
  }
  atomic_store(&stop, true);
  pthread_join(thread, NULL);
  close(contested);
  close(a);
  close(b);
}

int main(void) {
  both_numbers_of_either_sign();
  closed_without_deregistration();
  duplicate_avoids_taken_numbers();
  foreign_file_under_our_number_survives();
  same_file_under_our_number_survives();
  one_open_file_twice();
  modes();
  bounds();
  lookups_during_changes();
  return 0;
}
