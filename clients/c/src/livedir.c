/* SPDX-License-Identifier: Apache-2.0 */

#include "livedir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "linkname.h"
#include "log.h"
#include "process.h"

struct held {
  struct held *next;
  pid_t process_id;
  int fd;
  dev_t dev;
  ino_t ino;
  char mount[USRBIO_MOUNT_BYTES];
};

static struct held *all_held; /* entries are added, never removed */

static struct held *find_locked(const char *mount) {
  for (struct held *h = all_held; h != NULL; h = h->next) {
    if (h->process_id == usrbio_process_id() && strcmp(h->mount, mount) == 0) {
      return h;
    }
  }
  return NULL;
}

/* NONE also means that the program closed our descriptor and the number is now another file. */
enum handle_state { HANDLE_NONE, HANDLE_LIVE, HANDLE_STALE };

/* fstat of the handle is not enough: for a dead daemon the kernel may answer from its cache. */
static enum handle_state state_of(const struct held *h, const struct stat *now) {
  struct stat st;
  if (fstat(h->fd, &st) != 0) {
    return errno == ENOTCONN ? HANDLE_STALE : HANDLE_NONE;
  }
  if (st.st_dev != h->dev || st.st_ino != h->ino) {
    return HANDLE_NONE;
  }
  return st.st_dev == now->st_dev ? HANDLE_LIVE : HANDLE_STALE;
}

static bool open_handle(const char *path, struct held *h) {
  struct stat st;
  h->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (h->fd < 0) {
    return false;
  }
  if (fstat(h->fd, &st) != 0) {
    int err = errno;
    close(h->fd);
    errno = err;
    return false;
  }
  h->process_id = usrbio_process_id();
  h->dev = st.st_dev;
  h->ino = st.st_ino;
  return true;
}

void usrbio_livedir_hold(const char *mount) {
  char path[USRBIO_PATH_BYTES];
  usrbio_iovs_path(path, mount, "");
  struct stat now;
  if (stat(path, &now) != 0) {
    usrbio_log(USRBIO_WARN, "stat %s: %s", path, strerror(errno));
    return;
  }

  struct held seen = {.fd = -1};
  usrbio_lock();
  const struct held *known = find_locked(mount);
  if (known != NULL) {
    seen = *known;
  }
  usrbio_unlock();

  enum handle_state state = known != NULL ? state_of(&seen, &now) : HANDLE_NONE;
  if (state == HANDLE_LIVE) {
    return;
  }
  struct held *fresh = calloc(1, sizeof(*fresh));
  if (fresh == NULL || !open_handle(path, fresh)) {
    /* Not an error: the registration works, but it would outlive us if we were killed. */
    usrbio_log(USRBIO_WARN, "hold %s: %s", path, strerror(errno));
    free(fresh);
    return;
  }
  strcpy(fresh->mount, mount);

  usrbio_lock();
  struct held *current = find_locked(mount);
  bool replace = current != NULL && current->fd == seen.fd;
  if (current == NULL) {
    fresh->next = all_held;
    all_held = fresh;
    fresh = NULL;
  } else if (replace) {
    current->fd = fresh->fd;
    current->dev = fresh->dev;
    current->ino = fresh->ino;
  }
  usrbio_unlock();

  /*
   * Another thread was faster: our second handle stays open and unused. To the daemon, closing it
   * would mean that the owner of this thread's registrations has died.
   */
  free(fresh);
  if (replace && state == HANDLE_STALE) {
    close(seen.fd);
  }
}
