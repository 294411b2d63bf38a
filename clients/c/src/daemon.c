/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "futex.h"
#include "linkname.h"
#include "log.h"
#include "oldglibc.h"
#include "pace.h"
#include "process.h"

#define NS_PER_MS UINT64_C(1000000)
#define ANSWER_MS 30000 /* a daemon that works answers from memory */
#define SIGNALS_AFTER_NS (1000 * NS_PER_MS)
#define STACK_BYTES (256 << 10)

enum { WAITED_FOR, ANSWERED, ABANDONED }; /* the state of a call */

struct usrbio_daemon {
  struct usrbio_daemon *next;
  uint32_t generation; /* of the process that has the thread */

  pthread_mutex_t mu;
  pthread_cond_t more;
  struct usrbio_call *first, **last; /* under mu */
  bool has_thread;                   /* under mu */
  _Atomic bool hung;                 /* it has not answered for as long as anybody will wait */

  /* Of the thread alone: the open iovs directory. */
  int fd; /* -1: none yet */
  dev_t dev;
  ino_t ino;

  char mount[PATH_MAX];
};

static struct usrbio_daemon *all_daemons; /* under usrbio_lock; entries are added, never removed */

const char *usrbio_daemon_mount(const struct usrbio_daemon *daemon) { return daemon->mount; }

static int absolute(char path[PATH_MAX], const char *mount) {
  size_t used = 0;
  if (mount[0] != '/') {
    if (getcwd(path, PATH_MAX) == NULL) {
      return -errno;
    }
    used = strlen(path);
    path[used++] = '/';
  }
  if (used + strlen(mount) >= PATH_MAX) {
    return -ENAMETOOLONG;
  }
  strcpy(path + used, mount);
  return 0;
}

int usrbio_daemon_of(const char *mount, struct usrbio_daemon **out) {
  struct usrbio_daemon *fresh = calloc(1, sizeof(*fresh));
  if (fresh == NULL) {
    return -ENOMEM;
  }
  int err = absolute(fresh->mount, mount);
  if (err != 0) {
    free(fresh);
    return err;
  }
  fresh->generation = usrbio_generation();
  fresh->fd = -1;
  fresh->last = &fresh->first;
  pthread_mutex_init(&fresh->mu, NULL);
  pthread_cond_init(&fresh->more, NULL);

  usrbio_lock();
  struct usrbio_daemon *d = all_daemons;
  while (d != NULL && (d->generation != fresh->generation || strcmp(d->mount, fresh->mount) != 0)) {
    d = d->next;
  }
  if (d == NULL) {
    d = fresh;
    d->next = all_daemons;
    all_daemons = d;
    fresh = NULL;
  }
  usrbio_unlock();
  free(fresh);
  *out = d;
  return 0;
}

static void run(struct usrbio_daemon *d, struct usrbio_call *call) {
  call->run(d, call);
  int state = WAITED_FOR;
  if (atomic_compare_exchange_strong(&call->state, &state, ANSWERED)) {
    usrbio_futex_wake(&call->state, 1); /* the memory may be gone, which does no harm */
  } else {
    call->late(d, call);
  }
  atomic_store(&d->hung, false); /* last: who gives up says so before abandoning the call */
}

static void *serve(void *arg) {
  struct usrbio_daemon *d = arg;
  for (;;) {
    pthread_mutex_lock(&d->mu);
    while (d->first == NULL) {
      pthread_cond_wait(&d->more, &d->mu);
    }
    struct usrbio_call *call = d->first;
    d->first = call->next;
    if (d->first == NULL) {
      d->last = &d->first;
    }
    pthread_mutex_unlock(&d->mu);
    run(d, call);
  }
  return NULL;
}

static bool start_locked(struct usrbio_daemon *d) {
  if (d->has_thread) {
    return true;
  }
  pthread_attr_t attributes;
  sigset_t all, was;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigfillset(&all); /* the program's signals are for the program's threads */
  pthread_sigmask(SIG_SETMASK, &all, &was);
  d->has_thread = pthread_create(&thread, &attributes, serve, d) == 0;
  pthread_sigmask(SIG_SETMASK, &was, NULL);
  pthread_attr_destroy(&attributes);
  return d->has_thread;
}

/* Without a thread, because none can be had, the call is made here, and waits as long as it must. */
static void hand_over(struct usrbio_daemon *d, struct usrbio_call *call, int state) {
  atomic_init(&call->state, state);
  call->next = NULL;
  pthread_mutex_lock(&d->mu);
  bool queued = start_locked(d);
  if (queued) {
    *d->last = call;
    d->last = &call->next;
    pthread_cond_signal(&d->more);
  }
  pthread_mutex_unlock(&d->mu);
  if (!queued) {
    run(d, call);
  }
}

/* The entry of this process, which may be a child of the one that made daemon: the thread there is not here. */
static struct usrbio_daemon *here(struct usrbio_daemon *daemon, int *err) {
  struct usrbio_daemon *found = daemon;
  *err = daemon->generation == usrbio_generation() ? 0 : usrbio_daemon_of(daemon->mount, &found);
  return found;
}

void usrbio_tell(struct usrbio_daemon *daemon, struct usrbio_call *call) {
  int err;
  daemon = here(daemon, &err);
  if (err == 0) {
    hand_over(daemon, call, ABANDONED);
  } else {
    call->late(daemon, call);
  }
}

static uint64_t answer_ns(void) {
  const char *setting = getenv("HF3FS_USRBIO_ANSWER_MS");
  long ms = setting == NULL ? 0 : strtol(setting, NULL, 10);
  return (uint64_t)(ms > 0 && ms <= INT_MAX ? ms : ANSWER_MS) * NS_PER_MS;
}

/* Waits for the answer. Returns why it may end without one, or 0. */
static int await(struct usrbio_call *call) {
  uint64_t began = usrbio_now_ns();
  uint64_t end = began + answer_ns();
  uint64_t deaf_until = began + SIGNALS_AFTER_NS;
  bool interrupted = false;
  while (atomic_load(&call->state) == WAITED_FOR) {
    uint64_t now = usrbio_now_ns();
    if (interrupted && now >= deaf_until) {
      return -EINTR;
    }
    if (now >= end) {
      return -ETIMEDOUT;
    }
    uint64_t until = interrupted && deaf_until < end ? deaf_until : end;
    interrupted |= usrbio_futex_wait(&call->state, WAITED_FOR, until) == EINTR;
  }
  return 0;
}

int usrbio_ask(struct usrbio_daemon *daemon, struct usrbio_call *call) {
  int err;
  daemon = here(daemon, &err);
  if (err == 0 && atomic_load(&daemon->hung)) {
    if (call->must_run) {
      hand_over(daemon, call, ABANDONED);
      return -ETIMEDOUT;
    }
    err = -ETIMEDOUT;
  }
  if (err != 0) {
    call->late(daemon, call);
    return err;
  }
  hand_over(daemon, call, WAITED_FOR);
  err = await(call);
  if (err == 0) {
    return 0;
  }
  atomic_store(&daemon->hung, true);
  int state = WAITED_FOR;
  if (!atomic_compare_exchange_strong(&call->state, &state, ABANDONED)) {
    atomic_store(&daemon->hung, false);
    return 0;
  }
  usrbio_log(USRBIO_ERROR, "the daemon of %s does not answer", daemon->mount);
  return err;
}

/* NONE also means that the program closed our descriptor and the number is now another file. */
enum handle_state { HANDLE_NONE, HANDLE_OURS, HANDLE_DEAD };

static enum handle_state state_of(const struct usrbio_daemon *d) {
  struct stat st;
  if (d->fd < 0) {
    return HANDLE_NONE;
  }
  if (usrbio_fstat(d->fd, &st) != 0) {
    return errno == ENOTCONN ? HANDLE_DEAD : HANDLE_NONE;
  }
  return st.st_dev == d->dev && st.st_ino == d->ino ? HANDLE_OURS : HANDLE_NONE;
}

void usrbio_daemon_hold(struct usrbio_daemon *d) {
  char path[USRBIO_PATH_BYTES];
  usrbio_iovs_path(path, d->mount, "");
  struct stat now, opened;
  if (usrbio_stat(path, &now) != 0) {
    usrbio_log(USRBIO_WARN, "stat %s: %s", path, strerror(errno));
    return;
  }
  enum handle_state state = state_of(d);
  /* fstat of the handle is not enough: for a dead daemon the kernel may answer from its cache. */
  if (state == HANDLE_OURS && now.st_dev == d->dev) {
    return;
  }
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || usrbio_fstat(fd, &opened) != 0) {
    /* Not an error: the registration works, but it would outlive us if we were killed. */
    usrbio_log(USRBIO_WARN, "hold %s: %s", path, strerror(errno));
    if (fd >= 0) {
      close(fd);
    }
    return;
  }
  if (state != HANDLE_NONE) {
    close(d->fd);
  }
  d->fd = fd;
  d->dev = opened.st_dev;
  d->ino = opened.st_ino;
}

static bool means_gone(int err) {
  return err == ENOTCONN || err == ECONNABORTED || err == ECONNREFUSED || err == ENODEV || err == ESTALE ||
         err == ENOENT || err == ENOTDIR;
}

bool usrbio_daemon_lost(struct usrbio_daemon *d, const char *name) {
  char path[USRBIO_PATH_BYTES], target[1];
  /* By the handle, because another daemon may have mounted over the path, or this process may no longer see it. */
  switch (state_of(d)) {
  case HANDLE_DEAD:
    return true;
  case HANDLE_OURS:
    return readlinkat(d->fd, name, target, sizeof(target)) < 0 && means_gone(errno);
  case HANDLE_NONE:
    break;
  }
  usrbio_iovs_path(path, d->mount, name);
  return readlink(path, target, sizeof(target)) < 0 && means_gone(errno);
}
