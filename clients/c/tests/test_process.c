/* SPDX-License-Identifier: Apache-2.0 */

/* What children do with what their parents made: children of fork, from any thread, of clone and of vfork. */

#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "fakemount.h"
#include "hf3fs_usrbio.h"
#include "process.h"
#include "ring.h"

/* Children of a program with threads make threads, which gcc's library does by default not allow. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }

static struct fakemount mount;
static struct hf3fs_iov iov;
static struct hf3fs_ior ior;
static char object[PATH_MAX];

static void make(void) {
  char name[256], link[PATH_MAX];
  CHECK_EQ(hf3fs_iovcreate(&iov, mount.path, 4096, 0, -1), 0);
  fakemount_path(&mount, "", link);
  DIR *dir = opendir(link);
  CHECK(dir != NULL);
  for (struct dirent *e; (e = readdir(dir)) != NULL;) {
    if (strlen(e->d_name) == 36) {
      strcpy(name, e->d_name);
    }
  }
  closedir(dir);
  fakemount_path(&mount, name, link);
  ssize_t length = readlink(link, object, sizeof(object) - 1);
  CHECK(length > 0);
  object[length] = '\0';
  CHECK_EQ(hf3fs_iorcreate(&ior, mount.path, 4, true, 0, -1), 0);
}

static void ended_well(pid_t child) {
  int status;
  CHECK(child > 0);
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

/* All is there, and destroys. */
static void is_unharmed(void) {
  struct hf3fs_cqe c[1];
  CHECK_EQ(fakemount_registrations(&mount), 2);
  CHECK_EQ(access(object, F_OK), 0);
  CHECK_EQ(hf3fs_wait_for_ios(&ior, c, 1, 0, NULL), 0);
  CHECK_EQ(hf3fs_iovprobe(&iov), 0);
  hf3fs_iovdestroy(&iov);
  hf3fs_iordestroy(&ior);
  CHECK_EQ(fakemount_registrations(&mount), 0);
  CHECK(access(object, F_OK) != 0);
}

/* A child in a memory of its own. */
static void misbehave(void) {
  struct hf3fs_cqe c[1];
  const struct usrbio_ring *ring = ior.iorh;
  int posts = fakemount_posts(&mount), done = 0;
  CHECK_EQ(hf3fs_submit_ios(&ior), -EBUSY);
  CHECK_EQ(hf3fs_wait_for_ios(&ior, c, 1, 0, NULL), -EBUSY);
  CHECK_EQ(hf3fs_iorrenew(&ior), -EBUSY);
  CHECK_EQ(hf3fs_iovrenew(&iov), -EBUSY);
  CHECK_EQ(hf3fs_iorprobe(&ior), 0);
  CHECK_EQ(hf3fs_iovprobe(&iov), 0);
  CHECK_EQ(sem_getvalue(ring->done_sem, &done), 0);
  struct hf3fs_iov own;
  CHECK_EQ(hf3fs_iovcreate(&own, mount.path, 4096, 0, -1), 0);
  hf3fs_iovdestroy(&own);
  hf3fs_iovunlink(&iov);
  hf3fs_iovdestroy(&iov);
  hf3fs_iordestroy(&ior);
  CHECK_EQ(fakemount_posts(&mount), posts);
  CHECK_EQ(done, 0);
}

static void forked(void) {
  make();
  pid_t child = fork();
  if (child == 0) {
    misbehave();
    _exit(0);
  }
  ended_well(child);
  is_unharmed();
}

static void *fork_here(void *unused) {
  (void)unused;
  pid_t child = fork();
  if (child == 0) {
    misbehave();
    _exit(0);
  }
  ended_well(child);
  return NULL;
}

static void forked_from_a_thread(void) {
  pthread_t thread;
  make();
  CHECK_EQ(pthread_create(&thread, NULL, fork_here, NULL), 0);
  pthread_join(thread, NULL);
  is_unharmed();
}

/* No handler of fork runs. */
static void cloned(void) {
  make();
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (child == 0) {
    misbehave();
    _exit(0);
  }
  ended_well(child);
  is_unharmed();
}

static int end_badly(void *unused) {
  (void)unused;
  hf3fs_iovunlink(&iov);
  hf3fs_iovdestroy(&iov);
  hf3fs_iordestroy(&ior);
  bool kept = iov.base != NULL && iov.iovh != NULL && ior.iorh != NULL;
  syscall(SYS_exit, kept ? 0 : 1);
  return 1;
}

/* A child of vfork that runs its parent's destructors, in its parent's memory. */
static void in_the_parents_memory(void) {
  static _Alignas(64) uint8_t stack[256 << 10];
  make();
  ended_well(clone(end_badly, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
  is_unharmed();
}

/* As fork, with this process id; -1 if that is not allowed, or another process has it by now. */
static pid_t fork_as(pid_t id) {
  struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&id, .set_tid_size = 1};
  return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/* With the process id of an ancestor that had a thread, and was about to collect completions. */
static void grandchild(void) {
  struct hf3fs_cqe c[1];
  struct hf3fs_iov own;
  CHECK_EQ(setenv("HF3FS_USRBIO_ANSWER_MS", "5000", 1), 0);
  CHECK_EQ(hf3fs_iovcreate(&own, mount.path, 4096, 0, -1), 0);
  hf3fs_iovdestroy(&own);
  struct usrbio_ring *ring = ior.iorh;
  atomic_store(&ring->markers->cqe_head, 1);
  ring->cqes[0].index = usrbio_slots_take(&ring->slots);
  CHECK_EQ(hf3fs_wait_for_ios(&ior, c, 1, 0, NULL), 1);
  hf3fs_iovdestroy(&iov); /* left by a process that has ended */
  hf3fs_iordestroy(&ior);
}

static void child_of(pid_t ancestor, int ended) {
  char c;
  CHECK_EQ(read(ended, &c, 1), 0); /* it has been waited for */
  pid_t child = fork_as(ancestor);
  if (child == 0) {
    CHECK_EQ(getpid(), ancestor);
    grandchild();
    _exit(0);
  }
  if (child < 0) {
    fprintf(stderr, "NOT TESTED: the process id of an ancestor: %s\n", strerror(errno));
    hf3fs_iovdestroy(&iov);
    hf3fs_iordestroy(&ior);
    _exit(0);
  }
  ended_well(child);
  _exit(0);
}

static void same_process_id(void) {
  int ended[2], all_ended[2];
  char c;
  CHECK_EQ(pipe(ended), 0);
  CHECK_EQ(pipe(all_ended), 0);
  pid_t child = fork();
  if (child == 0) {
    make();
    struct usrbio_ring *ring = ior.iorh;
    atomic_store(&ring->reaper, usrbio_generation()); /* as another thread would */
    pid_t self = getpid();
    if (fork() == 0) {
      close(ended[1]);
      child_of(self, ended[0]);
    }
    _exit(0);
  }
  ended_well(child);
  close(ended[1]);
  close(all_ended[1]);
  CHECK_EQ(read(all_ended[0], &c, 1), 0);
  close(ended[0]);
  close(all_ended[0]);
  CHECK_EQ(fakemount_registrations(&mount), 0);
}

static void generations(void) {
  struct usrbio_owner owner;
  uint32_t generation = usrbio_generation();
  usrbio_own(&owner);
  CHECK(usrbio_is_own(&owner));
  CHECK(usrbio_may_take(&owner));
  CHECK(!usrbio_in_parents_memory());
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQ(usrbio_generation(), generation + 1);
    CHECK(!usrbio_is_own(&owner));
    CHECK(!usrbio_may_take(&owner));
    CHECK(!usrbio_in_parents_memory());
    atomic_store(&owner.id, getpid()); /* as if it had ended, and its process id were ours */
    CHECK(!usrbio_is_own(&owner));
    CHECK(usrbio_may_take(&owner));
    usrbio_own(&owner);
    CHECK(usrbio_is_own(&owner));
    _exit(0);
  }
  ended_well(child);
  CHECK_EQ(usrbio_generation(), generation);
}

int main(void) {
  alarm(120);
  fakemount_make(&mount);
  generations();
  forked();
  forked_from_a_thread();
  cloned();
  in_the_parents_memory();
  same_process_id();
  return 0;
}
