/* SPDX-License-Identifier: Apache-2.0 */

/* Creation and destruction against an ordinary directory that looks like 3fs-virt/iovs. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "hf3fs_usrbio.h"
#include "janitor.h"
#include "linkname.h"
#include "ring.h"
#include "submitsem.h"

static int mount_tmpfs_over_shm(void) {
  /* By number: mount is our variable. MS_REC | MS_PRIVATE is 1 << 14 | 1 << 18. */
  return syscall(SYS_mount, "none", "/", NULL, 1UL << 14 | 1UL << 18, NULL) != 0 ||
         syscall(SYS_mount, "none", "/dev/shm", "tmpfs", 0UL, "size=64k") != 0;
}

static char mount[] = "/tmp/usrbio-create-XXXXXX";
static char sem_name[64];

static void path_of(char *path, const char *name) { snprintf(path, PATH_MAX, "%s/3fs-virt/iovs/%s", mount, name); }

/* What a signal can do to a call on a FUSE mount: it is carried out and returns EINTR. */
static int interruptions;

static _Atomic bool stopped; /* as the daemon: calls wait until it goes on */

/* Children of a program with threads make threads, which this library of gcc does by default not allow. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }

static int interrupted(int result) {
  if (result != 0 || interruptions == 0) {
    return result;
  }
  interruptions--;
  errno = EINTR;
  return -1;
}

static void wait_for_daemon(void) {
  while (atomic_load(&stopped)) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
}

int symlink(const char *target, const char *path) {
  wait_for_daemon();
  return interrupted(symlinkat(target, AT_FDCWD, path));
}

int unlink(const char *path) {
  wait_for_daemon();
  return interrupted(unlinkat(AT_FDCWD, path, 0));
}

static void link_submit(const char *name, const char *target) {
  char path[PATH_MAX];
  path_of(path, name);
  unlink(path);
  CHECK_EQ(symlink(target, path), 0);
}

/* Counts the registrations and returns the name of one of them. */
static int registrations(char name[256]) {
  char path[PATH_MAX];
  path_of(path, "");
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  for (struct dirent *e; (e = readdir(dir)) != NULL;) {
    if (e->d_name[0] != '.' && strncmp(e->d_name, "submit-ios", 10) != 0) {
      count++;
      if (name != NULL) {
        strcpy(name, e->d_name);
      }
    }
  }
  closedir(dir);
  return count;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static int open_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) {
    count += fcntl(fd, F_GETFD) >= 0;
  }
  return count;
}

static void iovs(void) {
  struct hf3fs_iov a, b;
  char name[256], path[PATH_MAX], target[PATH_MAX] = "";
  CHECK_EQ(hf3fs_iovcreate(NULL, mount, 1, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovcreate(&a, NULL, 1, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovcreate(&a, mount, 0, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovcreate(&a, mount, 100, 101, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovcreate(&a, mount, SIZE_MAX, 0, -1), -EIO);
  CHECK_EQ(hf3fs_iovcreate(&a, "/tmp/no-such-mount", 100, 0, -1), -ENOENT);
  hf3fs_iovdestroy(&a); /* harmless after a failure */
  CHECK_EQ(registrations(NULL), 0);

  CHECK_EQ(hf3fs_iovcreate(&a, mount, 5000, 1000, 0), 0);
  CHECK_EQ(registrations(name), 1);
  char want[256];
  usrbio_uuid_text((const uint8_t *)a.id, want);
  strcat(want, ".b1000");
  CHECK_STR(name, want);
  path_of(path, name);
  CHECK(readlink(path, target, sizeof(target) - 1) > 0);
  CHECK(strncmp(target, "/dev/shm/hf3fs-iov-", 19) == 0);
  CHECK(strncmp(target + 19, name, 36) != 0); /* two ids */
  struct stat st;
  CHECK_EQ(stat(target, &st), 0);
  CHECK_EQ(st.st_size, 5000);
  CHECK_EQ(a.size, 5000);
  CHECK_EQ(a.block_size, 1000);
  CHECK_STR(a.mount_point, mount);

  CHECK_EQ(hf3fs_iovopen(&b, (const uint8_t *)a.id, mount, 5000, 0, -1), -ENOENT); /* another block size */
  CHECK_EQ(hf3fs_iovopen(&b, (const uint8_t *)a.id, mount, 5001, 1000, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovopen(&b, NULL, mount, 5000, 1000, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovopen(&b, (const uint8_t *)a.id, mount, 5000, 1000, -1), 0);
  a.base[4999] = 42;
  CHECK_EQ(b.base[4999], 42);
  hf3fs_iovunlink(&b); /* does not own the name */
  CHECK(exists(target));
  hf3fs_iovunlink(&a);
  CHECK(!exists(target));
  CHECK_EQ(registrations(NULL), 1);
  hf3fs_iovdestroy(&b); /* documented: also removes the registration */
  CHECK_EQ(registrations(NULL), 0);
  hf3fs_iovdestroy(&a);
  hf3fs_iovdestroy(&a);
  CHECK(a.iovh == NULL);

  CHECK_EQ(hf3fs_iovcreate(&a, mount, 1, 0, 100000), 0);
  CHECK_EQ(registrations(name), 1);
  CHECK_EQ(strlen(name), 36);
  hf3fs_iovdestroy(&a);

  for (int n = 1; n <= 2; n++) { /* signals in symlink, then in unlink */
    interruptions = n;
    CHECK_EQ(hf3fs_iovcreate(&a, mount, 1, 0, -1), 0);
    CHECK_EQ(registrations(NULL), 1);
    interruptions = n;
    hf3fs_iovdestroy(&a);
    CHECK_EQ(registrations(NULL), 0);
    CHECK_EQ(interruptions, n - 1); /* ENOENT, the second time */
    interruptions = 0;
  }

  uint8_t id[16] = {1}, buf[10];
  char long_mount[300];
  memset(long_mount, 'x', sizeof(long_mount));
  long_mount[299] = '\0';
  CHECK_EQ(hf3fs_iovwrap(NULL, buf, id, mount, 10, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovwrap(&a, buf, id, long_mount, 10, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovcreate(&a, long_mount, 10, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iovwrap(&a, buf, id, mount, 10, 5, 3), 0);
  CHECK(a.base == buf && a.iovh == NULL && a.numa == 3);
  hf3fs_iovunlink(&a);
  hf3fs_iovdestroy(&a);
  CHECK(a.base == buf);
}

static void ring_name(const struct hf3fs_ior *ior, const char *suffix) {
  char name[256], want[256], path[PATH_MAX], target[PATH_MAX] = "";
  CHECK_EQ(registrations(name), 1);
  usrbio_uuid_text((const uint8_t *)ior->iov.id, want);
  strcat(want, suffix);
  CHECK_STR(name, want);
  path_of(path, name);
  CHECK(readlink(path, target, sizeof(target) - 1) > 0);
  CHECK(!exists(target)); /* the ring's shm name is removed at once */
}

static void rings(void) {
  struct hf3fs_ior r;
  CHECK_EQ(hf3fs_iorcreate(NULL, mount, 4, true, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iorcreate(&r, NULL, 4, true, 0, -1), -EINVAL);
  CHECK_EQ(hf3fs_iorcreate(&r, "", 4, true, 0, -1), -EINVAL);
  int bad_entries[] = {0, -1, -2, -44, -45, INT_MIN};
  for (size_t i = 0; i < sizeof(bad_entries) / sizeof(bad_entries[0]); i++) {
    CHECK_EQ(hf3fs_iorcreate(&r, mount, bad_entries[i], true, -1, -1), -EINVAL);
  }
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 5, -1), -EINVAL);
  CHECK_EQ(hf3fs_iorcreate4(&r, mount, 4, true, 0, -1, -1, 0), -EINVAL);
  hf3fs_iordestroy(&r);
  CHECK_EQ(registrations(NULL), 0);

  CHECK_EQ(hf3fs_iorcreate(&r, mount, 128, true, 128, -1), 0);
  ring_name(&r, ".r128.t0");
  CHECK_EQ(r.iov.size, 16528);
  CHECK_EQ(hf3fs_io_entries(&r), 128);
  CHECK_EQ(hf3fs_submit_ios(&r), 0);
  hf3fs_iordestroy(&r);
  hf3fs_iordestroy(&r);
  CHECK_EQ(registrations(NULL), 0);
  CHECK_EQ(hf3fs_submit_ios(&r), -EINVAL);

  CHECK_EQ(hf3fs_iorcreate2(&r, mount, 4, false, -8, -1, -1), 0);
  ring_name(&r, ".w-8.ph.t0");
  hf3fs_iordestroy(&r);
  CHECK_EQ(hf3fs_iorcreate3(&r, mount, 4, false, 2, 1, 20, -1), 0);
  ring_name(&r, ".w2.pl.t20");
  hf3fs_iordestroy(&r);

  /* A bug of 3FS's library: flags are binary in creation and decimal in destruction. */
  const char *suffixes[] = {".r0.t5", ".r0.t5.f1", ".r0.t5.f10", ".r0.t5.f11"};
  for (uint64_t flags = 0; flags < 4; flags++) {
    CHECK_EQ(hf3fs_iorcreate4(&r, mount, 4, true, 0, 5, -1, flags), 0);
    CHECK_EQ(r.flags, flags);
    ring_name(&r, suffixes[flags]);
    hf3fs_iordestroy(&r);
    CHECK_EQ(registrations(NULL), 0);
  }
}

/* Without its semaphore there is no ring, and nothing is left of the attempt. */
static void submit_links(void) {
  struct hf3fs_ior r;
  char target[400];
  static const char *const bad[] = {"/dev/shm/sem.", "/dev/shm/hf3fs-submit", "/dev/shm/sem.a/b", "/tmp/sem.a", "sem.a"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    link_submit("submit-ios", bad[i]);
    CHECK_EQ(hf3fs_iorcreate4(&r, mount, 4, true, 0, 0, -1, 3), -EIO);
    CHECK_EQ(registrations(NULL), 0);
    hf3fs_iordestroy(&r);
  }
  memset(target, 'a', sizeof(target));
  memcpy(target, "/dev/shm/sem.", 13);
  target[256] = '\0';
  link_submit("submit-ios", target);
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), -EIO);
  link_submit("submit-ios", "/dev/shm/sem.usrbio-no-such-semaphore");
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), -ENOENT);
  char path[PATH_MAX];
  path_of(path, "submit-ios");
  CHECK_EQ(unlink(path), 0);
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), -ENOENT);
  CHECK_EQ(registrations(NULL), 0);
}

/* Other processes of this user can write anything to the semaphore. */
static void defaced_semaphore(void) {
  struct hf3fs_ior r;
  char object[PATH_MAX];
  uint8_t ones[sizeof(sem_t)];
  memset(ones, 0xff, sizeof(ones));
  snprintf(object, sizeof(object), "/dev/shm/sem.%s", sem_name + 1);
  int fd = open(object, O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), 0);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(pwrite(fd, ones, sizeof(ones), 0), (ssize_t)sizeof(ones));
    CHECK_EQ(hf3fs_submit_ios(&r), 0);
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_EQ(hf3fs_submit_ios(&r), 0);
    struct hf3fs_ior another;
    CHECK_EQ(hf3fs_iorcreate(&another, mount, 4, true, 0, -1), 0);
    CHECK_EQ(hf3fs_submit_ios(&another), 0);
    hf3fs_iordestroy(&another);
  }
  /* Repaired, as the daemon does it. */
  CHECK_EQ(ftruncate(fd, sizeof(sem_t)), 0);
  CHECK_EQ(hf3fs_submit_ios(&r), 0);
  uint32_t value;
  CHECK_EQ(pread(fd, &value, sizeof(value), 0), (ssize_t)sizeof(value));
  CHECK_EQ(value, 1);
  hf3fs_iordestroy(&r);
  close(fd);
}

/* One held directory per mount string and process; a child gets its own. */
static void held_directory(void) {
  struct hf3fs_iov v;
  int before = open_descriptors();
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(hf3fs_iovcreate(&v, mount, 10, 0, -1), 0);
    hf3fs_iovdestroy(&v);
  }
  CHECK_EQ(open_descriptors(), before); /* held since the first test */
  char other[PATH_MAX];
  snprintf(other, sizeof(other), "%s/", mount);
  CHECK_EQ(hf3fs_iovcreate(&v, other, 10, 0, -1), 0);
  hf3fs_iovdestroy(&v);
  CHECK_EQ(open_descriptors(), before + 1);

  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_EQ(hf3fs_iovcreate(&v, mount, 10, 0, -1), 0);
    CHECK_EQ(open_descriptors(), before + 2);
    hf3fs_iovdestroy(&v);
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);

  /* A program that closed everything gets a new handle, and its own files are not touched. */
  int last = open("/dev/null", O_RDONLY) - 1;
  int null_fd = last + 1;
  CHECK_EQ(dup2(null_fd, last), last);
  CHECK_EQ(hf3fs_iovcreate(&v, other, 10, 0, -1), 0);
  hf3fs_iovdestroy(&v);
  CHECK_EQ(open_descriptors(), before + 3);
  CHECK(fcntl(last, F_GETFD) >= 0);
}

/* The name may be part of the struct, and the id, too. */
static void arguments_in_the_result(void) {
  struct hf3fs_ior r;
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), 0);
  struct hf3fs_ior again = r;
  CHECK_EQ(hf3fs_iorcreate4(&again, again.mount_point, 4, true, 0, 0, -1, 0), 0);
  CHECK_STR(again.mount_point, mount);
  hf3fs_iordestroy(&again);
  hf3fs_iordestroy(&r);

  struct hf3fs_iov a, b;
  CHECK_EQ(hf3fs_iovcreate(&a, mount, 4096, 0, -1), 0);
  b = a;
  CHECK_EQ(hf3fs_iovwrap(&b, a.base, (const uint8_t *)b.id, b.mount_point, 4096, 0, -1), 0);
  CHECK_STR(b.mount_point, mount);
  CHECK(memcmp(b.id, a.id, sizeof(a.id)) == 0);
  b = a;
  CHECK_EQ(hf3fs_iovopen(&b, (const uint8_t *)b.id, b.mount_point, 4096, 0, -1), 0);
  hf3fs_iovdestroy(&b);
  CHECK_EQ(hf3fs_iovcreate(&b, strcpy(b.mount_point, mount), 4096, 0, -1), 0);
  hf3fs_iovdestroy(&b);
  hf3fs_iovdestroy(&a);
  CHECK_EQ(registrations(NULL), 0);
}

static mode_t mode_of_object(void) {
  char name[256], path[PATH_MAX];
  struct stat st;
  CHECK_EQ(registrations(name), 1);
  path_of(path, name);
  CHECK_EQ(stat(path, &st), 0);
  return st.st_mode & 0777;
}

static void who_may_open_an_iov(void) {
  static const struct {
    const char *setting;
    mode_t mode;
  } cases[] = {{NULL, 0600}, {"0666", 0666}, {"660", 0660}, {"rw", 0600}, {"07777", 0600}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct hf3fs_iov v;
    if (cases[i].setting != NULL) {
      CHECK_EQ(setenv("HF3FS_USRBIO_SHM_MODE", cases[i].setting, 1), 0);
    }
    CHECK_EQ(hf3fs_iovcreate(&v, mount, 4096, 0, -1), 0);
    CHECK_EQ(mode_of_object(), cases[i].mode);
    hf3fs_iovdestroy(&v);
  }
  CHECK_EQ(unsetenv("HF3FS_USRBIO_SHM_MODE"), 0);
}

/* A mount given relative to a working directory that is left. */
static void another_working_directory(void) {
  struct hf3fs_iov v;
  struct hf3fs_ior r;
  CHECK_EQ(chdir("/tmp"), 0);
  CHECK_EQ(hf3fs_iovcreate(&v, mount + strlen("/tmp/"), 4096, 0, -1), 0);
  CHECK_EQ(hf3fs_iorcreate(&r, mount + strlen("/tmp/"), 4, true, 0, -1), 0);
  CHECK_EQ(chdir("/"), 0);
  CHECK_EQ(hf3fs_iovprobe(&v), 0);
  CHECK_EQ(hf3fs_iorrenew(&r), 0);
  CHECK_STR(r.mount_point, mount + strlen("/tmp/"));
  hf3fs_iovdestroy(&v);
  hf3fs_iordestroy(&r);
  CHECK_EQ(registrations(NULL), 0);
}

/* What a forked child destroys stays its parent's. */
static void parents_registrations(void) {
  struct hf3fs_iov v;
  struct hf3fs_ior r;
  char name[256], path[PATH_MAX], target[PATH_MAX] = "";
  CHECK_EQ(hf3fs_iovcreate(&v, mount, 4096, 0, -1), 0);
  CHECK_EQ(registrations(name), 1);
  path_of(path, name);
  CHECK(readlink(path, target, sizeof(target) - 1) > 0);
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    hf3fs_iovunlink(&v);
    hf3fs_iovdestroy(&v);
    hf3fs_iordestroy(&r);
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(registrations(NULL), 2);
  CHECK(exists(target));
  hf3fs_iovdestroy(&v);
  hf3fs_iordestroy(&r);
  CHECK_EQ(registrations(NULL), 0);
  CHECK(!exists(target));
}

static void *wait_until_destroyed(void *arg) {
  struct hf3fs_cqe c[1];
  CHECK_EQ(hf3fs_wait_for_ios(arg, c, 1, 1, NULL), -EINVAL);
  return NULL;
}

static void wait_for_waiters(const struct hf3fs_ior *r, uint32_t count) {
  const struct usrbio_ring *ring = r->iorh;
  while (atomic_load((_Atomic uint32_t *)(void *)ring->done_sem + 1) < count) {
    sched_yield();
  }
}

static void destroyed_under_waiters(void) {
  enum { WAITERS = 4 };
  CHECK_EQ(setenv("HF3FS_USRBIO_WAIT_JITTER_MS", "2147483647", 1), 0); /* only the end of the ring wakes them */
  alarm(60);
  for (int round = 0; round < 20; round++) {
    struct hf3fs_ior r;
    pthread_t threads[WAITERS];
    CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), 0);
    for (int i = 0; i < WAITERS; i++) {
      CHECK_EQ(pthread_create(&threads[i], NULL, wait_until_destroyed, &r), 0);
    }
    wait_for_waiters(&r, WAITERS);
    hf3fs_iordestroy(&r);
    for (int i = 0; i < WAITERS; i++) {
      pthread_join(threads[i], NULL);
    }
  }
  alarm(0);
  CHECK_EQ(unsetenv("HF3FS_USRBIO_WAIT_JITTER_MS"), 0);
}

static void remove_link(const char *name) {
  char path[PATH_MAX];
  path_of(path, name);
  CHECK_EQ(unlink(path), 0);
}

/* A daemon that no longer knows the registrations: it was restarted. */
static void daemon_is_gone(void) {
  struct hf3fs_ior r;
  struct hf3fs_cqe c[1];
  char name[256];
  CHECK_EQ(hf3fs_iorcreate4(&r, mount, 4, true, -2, 7, -1, 2), 0);
  CHECK_EQ(registrations(name), 1);
  CHECK_EQ(hf3fs_iorprobe(&r), 0);
  alarm(60);
  remove_link(name);
  CHECK_EQ(hf3fs_wait_for_ios(&r, c, 1, 1, NULL), -ENOTCONN);
  CHECK_EQ(hf3fs_iorprobe(&r), -ENOTCONN);
  struct timespec past = {0};
  CHECK_EQ(hf3fs_wait_for_ios(&r, c, 1, 1, &past), 0); /* a deadline is no error */

  /* What upstream's library does, on demand. */
  CHECK_EQ(setenv("HF3FS_USRBIO_WAIT_FOREVER", "yes", 1), 0);
  pthread_t waiter;
  CHECK_EQ(pthread_create(&waiter, NULL, wait_until_destroyed, &r), 0);
  wait_for_waiters(&r, 1);
  nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 200000000}, NULL); /* the other wait would have ended */
  struct hf3fs_ior old = r;
  CHECK_EQ(hf3fs_iorrenew(&r), 0); /* and the waiter on the old ring returns */
  pthread_join(waiter, NULL);
  CHECK_EQ(unsetenv("HF3FS_USRBIO_WAIT_FOREVER"), 0);
  alarm(0);
  CHECK(memcmp(old.iov.id, r.iov.id, sizeof(old.iov.id)) != 0);
  ring_name(&r, ".r-2.t7.f10");
  CHECK_EQ(hf3fs_iorprobe(&r), 0);
  CHECK_EQ(hf3fs_io_entries(&r), 4);
  hf3fs_iordestroy(&r);

  struct hf3fs_iov v;
  CHECK_EQ(hf3fs_iovcreate(&v, mount, 4096, 1024, -1), 0);
  v.base[7] = 42;
  CHECK_EQ(registrations(name), 1);
  remove_link(name);
  CHECK_EQ(hf3fs_iovprobe(&v), -ENOTCONN);
  CHECK_EQ(hf3fs_iovrenew(&v), 0);
  CHECK_EQ(hf3fs_iovrenew(&v), 0); /* harmless if it is there */
  CHECK_EQ(hf3fs_iovprobe(&v), 0);
  char renewed[256];
  CHECK_EQ(registrations(renewed), 1);
  CHECK_STR(renewed, name);
  CHECK_EQ(v.base[7], 42);
  hf3fs_iovdestroy(&v);
  CHECK_EQ(hf3fs_iovprobe(&v), -EINVAL);
  CHECK_EQ(hf3fs_iorprobe(&r), -EINVAL);
  CHECK_EQ(registrations(NULL), 0);
}

/* Memory of the caller's, registered by the library. */
static void callers_memory(void) {
  static const uint8_t id[16] = "fedcba987654321";
  uint8_t memory[64];
  char name[256], path[PATH_MAX], target[PATH_MAX] = "";
  struct hf3fs_iov v;
  CHECK_EQ(hf3fs_iovwrap(&v, memory, id, mount, sizeof(memory), 32, -1), 0);
  CHECK_EQ(hf3fs_iovregister(&v, NULL), -EINVAL);
  CHECK_EQ(hf3fs_iovregister(&v, "/psm_1"), 0);
  CHECK_EQ(hf3fs_iovregister(&v, "/psm_1"), -EINVAL);
  CHECK_EQ(registrations(name), 1);
  path_of(path, name);
  CHECK(readlink(path, target, sizeof(target) - 1) > 0);
  CHECK_STR(target, "/dev/shm/psm_1");
  hf3fs_iovdestroy(&v);
  CHECK(v.base == memory);
  CHECK(v.iovh == NULL);
  CHECK_EQ(registrations(NULL), 0);
}

static void *interrupt_soon(void *arg) {
  nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
  pthread_kill(*(pthread_t *)arg, SIGUSR1);
  return NULL;
}

static _Atomic int signals;

static void on_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals, 1);
}

/* Nobody waits for ever for a daemon that was stopped, and what is to go goes when it goes on. */
static void daemon_is_stopped(void) {
  struct hf3fs_iov v, w;
  struct hf3fs_ior r, q;
  alarm(60);
  CHECK_EQ(hf3fs_iovcreate(&v, mount, 4096, 0, -1), 0);
  CHECK_EQ(hf3fs_iorcreate(&r, mount, 4, true, 0, -1), 0);
  CHECK_EQ(registrations(NULL), 2);
  CHECK_EQ(setenv("HF3FS_USRBIO_ANSWER_MS", "50", 1), 0);
  atomic_store(&stopped, true);
  CHECK_EQ(hf3fs_iovcreate(&w, mount, 4096, 0, -1), -ETIMEDOUT);
  CHECK_EQ(unsetenv("HF3FS_USRBIO_ANSWER_MS"), 0); /* from now on nobody waits */
  CHECK_EQ(hf3fs_iovcreate(&w, mount, 4096, 0, -1), -ETIMEDOUT);
  CHECK_EQ(hf3fs_iorcreate(&q, mount, 4, true, 0, -1), -ETIMEDOUT);
  hf3fs_iovdestroy(&v);
  hf3fs_iordestroy(&r);
  CHECK_EQ(registrations(NULL), 2);
  atomic_store(&stopped, false);
  while (registrations(NULL) > 0) {
    sched_yield();
  }
  while (hf3fs_iovcreate(&w, mount, 4096, 0, -1) == -ETIMEDOUT) {
    sched_yield();
  }
  CHECK_EQ(registrations(NULL), 1); /* the one that came too late has been removed */

  /* After a second a signal ends the wait as well, whenever it came. */
  pthread_t self = pthread_self(), interrupter;
  CHECK_EQ(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL), 0);
  atomic_store(&stopped, true);
  CHECK_EQ(pthread_create(&interrupter, NULL, interrupt_soon, &self), 0);
  CHECK_EQ(hf3fs_iovcreate(&v, mount, 4096, 0, -1), -EINTR);
  CHECK_EQ(atomic_load(&signals), 1);
  hf3fs_iovdestroy(&w);
  atomic_store(&stopped, false);
  while (registrations(NULL) > 0) {
    sched_yield();
  }
  pthread_join(interrupter, NULL);
  alarm(0);
}

/* Where /dev/shm is nearly full, that is said at once, not by a SIGBUS later. */
static void full_shared_memory(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount_tmpfs_over_shm() != 0) {
      const char *required = getenv("KV3FS_REQUIRE_MOUNTS");
      fprintf(stderr, "NOT TESTED: a full /dev/shm: %s\n", strerror(errno));
      _exit(required != NULL && strcmp(required, "1") == 0);
    }
    struct hf3fs_ior r;
    struct hf3fs_iov v;
    CHECK_EQ(hf3fs_iorcreate(&r, mount, 4096, true, 0, -1), -ENOSPC);
    CHECK_EQ(hf3fs_iovcreate_reserved(&v, mount, 1 << 20, 0, -1), -ENOSPC);
    CHECK_EQ(registrations(NULL), 0);
    CHECK_EQ(hf3fs_iovcreate(&v, mount, 1 << 20, 0, -1), 0); /* of which nothing is used yet */
    hf3fs_iovdestroy(&v);
    CHECK_EQ(hf3fs_iovcreate_reserved(&v, mount, 16384, 4096, -1), 0);
    memset(v.base, 1, 16384);
    hf3fs_iovdestroy(&v);
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

int main(void) {
  CHECK(mkdtemp(mount) != NULL);
  snprintf(sem_name, sizeof(sem_name), "/usrbio-test-%d", (int)getpid());
  janitor_start(mount, sem_name);
  char path[PATH_MAX], target[PATH_MAX];
  snprintf(path, sizeof(path), "%s/3fs-virt", mount);
  CHECK_EQ(mkdir(path, 0777), 0);
  path_of(path, "");
  CHECK_EQ(mkdir(path, 0777), 0);
  sem_t *sem = sem_open(sem_name, O_CREAT | O_EXCL, 0600, 0);
  CHECK(sem != SEM_FAILED);
  snprintf(target, sizeof(target), "/dev/shm/sem.%s", sem_name + 1);
  link_submit("submit-ios", target);
  link_submit("submit-ios.ph", target);
  link_submit("submit-ios.pl", target);

  iovs();
  rings();
  held_directory();
  arguments_in_the_result();
  who_may_open_an_iov();
  another_working_directory();
  parents_registrations();
  destroyed_under_waiters();
  callers_memory();
  daemon_is_gone();
  daemon_is_stopped();
  full_shared_memory();
  defaced_semaphore();
  submit_links();

  sem_close(sem);
  return 0;
}
