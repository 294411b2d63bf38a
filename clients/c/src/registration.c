/* SPDX-License-Identifier: Apache-2.0 */

#include "registration.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon.h"
#include "linkname.h"
#include "log.h"
#include "oldglibc.h"
#include "process.h"

#define SHM_DIR "/dev/shm"
#define SHM_NAME_BYTES (sizeof("/hf3fs-iov-") + USRBIO_UUID_TEXT_BYTES)

#define NAME_BYTES (USRBIO_UUID_TEXT_BYTES + USRBIO_SUFFIX_BYTES) /* of a link */

/* The question whether the daemon is lost. It may outlive the registration. */
struct probe {
  struct usrbio_call call;
  uint32_t generation; /* of the process whose question it is */
  _Atomic int refs; /* one of the registration, one of a question on its way */
  _Atomic bool asking;
  _Atomic bool lost;
  char name[NAME_BYTES];
};

struct usrbio_registration {
  struct usrbio_daemon *daemon;
  struct probe *probe;
  struct usrbio_owner owner;
  uint8_t *base;
  size_t size_bytes;
  uint8_t id[16];
  char shm_name[SHM_NAME_BYTES]; /* empty if already unlinked, or not ours to unlink */
  char name[NAME_BYTES];
  char target[PATH_MAX]; /* of the link */
};

/*
 * Preferred, not bound: a full node then costs speed but no SIGBUS. It is not an error if the hint cannot
 * be followed (no such node, no NUMA, seccomp).
 */
static void prefer_node(void *base, size_t size_bytes, int numa) {
  enum { MODE_PREFERRED = 1, MASK_WORDS = 16, BITS = 64 };
  unsigned long mask[MASK_WORDS] = {0};
  if (numa < 0 || numa >= MASK_WORDS * BITS) {
    return;
  }
  mask[numa / BITS] = 1UL << (numa % BITS);
  if (syscall(SYS_mbind, base, size_bytes, MODE_PREFERRED, mask, (unsigned long)(MASK_WORDS * BITS), 0UL) != 0) {
    usrbio_log(USRBIO_INFO, "numa node %d is ignored: %s", numa, strerror(errno));
  }
}

static int map(struct usrbio_registration *r, int fd, size_t size_bytes, int numa) {
  void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    usrbio_log(USRBIO_ERROR, "map %zu bytes of shared memory: %s", size_bytes, strerror(errno));
    return -EIO;
  }
  r->base = base;
  r->size_bytes = size_bytes;
  prefer_node(base, size_bytes, numa);
  return 0;
}

/* 0600: what engines keep in their buffers is not for every user of the host. */
static mode_t shm_mode(bool *is_set) {
  const char *setting = getenv("HF3FS_USRBIO_SHM_MODE");
  char *end = NULL;
  unsigned long mode = setting == NULL ? 0 : strtoul(setting, &end, 8);
  *is_set = mode != 0 && mode <= 0777 && *end == '\0';
  return *is_set ? (mode_t)mode : 0600;
}

/* Takes the pages, piece by piece: a signal during a piece undoes it. */
static int reserve(int fd, size_t size_bytes) {
  const size_t most = (size_t)16 << 20;
  for (size_t at = 0; at < size_bytes;) {
    size_t piece = size_bytes - at < most ? size_bytes - at : most;
    if (fallocate(fd, 0, (off_t)at, (off_t)piece) == 0) {
      at += piece;
    } else if (errno != EINTR) {
      return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -errno;
    }
  }
  return 0;
}

/* A full /dev/shm has a cure, so it is told from other failures. */
static int shm_error(const char *what, const char *name, int err) {
  usrbio_log(USRBIO_ERROR, "%s %s%s: %s", what, SHM_DIR, name, strerror(err));
  return err == ENOSPC ? -ENOSPC : -EIO;
}

static int create_shm(struct usrbio_registration *r, const struct usrbio_memory *memory) {
  uint8_t uuid[16];
  char text[USRBIO_UUID_TEXT_BYTES];
  if (memory->size_bytes > SSIZE_MAX || usrbio_uuid_new(uuid) != 0) {
    return -EIO;
  }
  usrbio_uuid_text(uuid, text);
  snprintf(r->shm_name, sizeof(r->shm_name), "/hf3fs-iov-%s", text);
  bool mode_set;
  mode_t mode = shm_mode(&mode_set);
  int fd = shm_open(r->shm_name, O_RDWR | O_CREAT | O_EXCL, mode);
  if (fd < 0) {
    int err = shm_error("create", r->shm_name, errno);
    r->shm_name[0] = '\0';
    return err;
  }
  int err = 0;
  /* Exactly this size: both sides derive the ring's geometry from it. */
  if ((mode_set && fchmod(fd, mode) != 0) || ftruncate(fd, (off_t)memory->size_bytes) != 0) {
    err = shm_error("resize", r->shm_name, errno);
  } else {
    err = map(r, fd, memory->size_bytes, memory->numa);
  }
  if (err == 0 && memory->reserve && (err = reserve(fd, memory->size_bytes)) != 0) {
    err = shm_error("reserve", r->shm_name, -err);
  }
  close(fd);
  return err;
}

static void unref(struct probe *probe) {
  if (probe != NULL && atomic_fetch_sub(&probe->refs, 1) == 1) {
    free(probe);
  }
}

static void start_probe(struct probe *p, const char *name) {
  p->generation = usrbio_generation();
  atomic_init(&p->refs, 1);
  strcpy(p->name, name);
}

void usrbio_registration_free(struct usrbio_registration *r) {
  usrbio_registration_unlink_shm(r);
  if (r->base != NULL) {
    munmap(r->base, r->size_bytes);
  }
  unref(r->probe);
  free(r);
}

/* A FUSE daemon may return EINTR when a signal arrives, even after it has carried out the call. */
static int link_name(const char *target, const char *path) {
  if (symlink(target, path) == 0) {
    return 0;
  }
  while (errno == EINTR) {
    if (symlink(target, path) == 0 || errno == EEXIST) {
      return 0;
    }
  }
  return -errno;
}

static int unlink_name(const char *path) {
  while (unlink(path) != 0) {
    if (errno != EINTR) {
      return -errno;
    }
  }
  return 0;
}

/* A question about one link. */
struct link_call {
  struct usrbio_call call;
  int err;
  bool renew; /* it may be there already */
  char name[NAME_BYTES];
  char target[PATH_MAX];
};

static struct link_call *link_call(const struct usrbio_registration *r) {
  struct link_call *c = calloc(1, sizeof(*c));
  if (c != NULL) {
    c->err = -ETIMEDOUT;
    strcpy(c->name, r->name);
    strcpy(c->target, r->target);
  }
  return c;
}

static void run_link(struct usrbio_daemon *d, struct usrbio_call *call) {
  struct link_call *c = (struct link_call *)(void *)call;
  char path[USRBIO_PATH_BYTES];
  usrbio_iovs_path(path, usrbio_daemon_mount(d), c->name);
  c->err = link_name(c->target, path);
  if (c->renew && c->err == -EEXIST) {
    c->err = 0;
  }
  if (c->err == 0) {
    usrbio_daemon_hold(d);
  }
}

static void run_unlink(struct usrbio_daemon *d, struct usrbio_call *call) {
  struct link_call *c = (struct link_call *)(void *)call;
  char path[USRBIO_PATH_BYTES];
  usrbio_iovs_path(path, usrbio_daemon_mount(d), c->name);
  c->err = unlink_name(path);
}

static void run_resolve(struct usrbio_daemon *d, struct usrbio_call *call) {
  struct link_call *c = (struct link_call *)(void *)call;
  char path[USRBIO_PATH_BYTES];
  usrbio_iovs_path(path, usrbio_daemon_mount(d), c->name);
  c->err = realpath(path, c->target) == NULL ? -errno : 0;
}

static void free_late(struct usrbio_daemon *d, struct usrbio_call *call) {
  (void)d;
  free(call);
}

static void unlink_late(struct usrbio_daemon *d, struct usrbio_call *call) {
  struct link_call *c = (struct link_call *)(void *)call;
  if (c->err == 0 && !c->renew) {
    run_unlink(d, call);
  }
  free(c);
}

static int register_link(const struct usrbio_registration *r, bool renew) {
  struct link_call *c = link_call(r);
  if (c == NULL) {
    return -ENOMEM;
  }
  c->renew = renew;
  c->call.run = run_link;
  c->call.late = unlink_late;
  int err = usrbio_ask(r->daemon, &c->call);
  if (err == 0) {
    err = c->err;
    free(c);
  }
  if (err != 0) {
    usrbio_log(USRBIO_ERROR, "register %s on %s: %s", r->name, usrbio_daemon_mount(r->daemon), strerror(-err));
  }
  return err;
}

/* Everything but memory and target. */
static int begin(const char *mount, const uint8_t id[16], const char *suffix, struct usrbio_registration **out) {
  struct usrbio_registration *r = calloc(1, sizeof(*r));
  if (r == NULL) {
    return -ENOMEM;
  }
  r->probe = calloc(1, sizeof(*r->probe));
  int err = r->probe == NULL ? -ENOMEM : usrbio_daemon_of(mount, &r->daemon);
  if (err != 0) {
    free(r->probe);
    free(r);
    return err;
  }
  usrbio_own(&r->owner);
  memcpy(r->id, id, sizeof(r->id));
  usrbio_uuid_text(r->id, r->name);
  strcat(r->name, suffix);
  start_probe(r->probe, r->name);
  *out = r;
  return 0;
}

int usrbio_registration_create(const char *mount,
                               const char *suffix,
                               const struct usrbio_memory *memory,
                               struct usrbio_registration **out) {
  /* The id differs from the uuid in the shm name: the name of a file in /dev/shm must not reveal the id. */
  uint8_t id[16];
  struct usrbio_registration *r = NULL;
  int err = usrbio_uuid_new(id);
  if (err != 0 || (err = begin(mount, id, suffix, &r)) != 0) {
    return err;
  }
  err = create_shm(r, memory);
  if (err == 0) {
    snprintf(r->target, sizeof(r->target), SHM_DIR "%s", r->shm_name);
    err = register_link(r, false);
  }
  if (err != 0) {
    usrbio_registration_free(r);
    return err;
  }
  *out = r;
  return 0;
}

int usrbio_registration_add(const char *mount,
                            const uint8_t id[16],
                            const char *suffix,
                            const char *shm_name,
                            struct usrbio_registration **out) {
  struct usrbio_registration *r = NULL;
  if (strlen(shm_name) >= sizeof(r->target) - sizeof(SHM_DIR "/")) {
    return -ENAMETOOLONG;
  }
  int err = begin(mount, id, suffix, &r);
  if (err != 0) {
    return err;
  }
  strcpy(r->target, SHM_DIR "/");
  strcat(r->target, shm_name + (shm_name[0] == '/'));
  err = register_link(r, false);
  if (err != 0) {
    usrbio_registration_free(r);
    return err;
  }
  *out = r;
  return 0;
}

/* Finds the object that is registered under r's name. */
static int resolve(struct usrbio_registration *r) {
  struct link_call *c = link_call(r);
  if (c == NULL) {
    return -ENOMEM;
  }
  c->call.run = run_resolve;
  c->call.late = free_late;
  int err = usrbio_ask(r->daemon, &c->call);
  if (err != 0) {
    return err;
  }
  err = c->err;
  strcpy(r->target, c->target);
  free(c);
  if (err == 0 && strncmp(r->target, SHM_DIR "/", sizeof(SHM_DIR)) != 0) {
    err = -EINVAL;
  }
  return err;
}

static int map_existing(struct usrbio_registration *r, size_t size_bytes, int numa) {
  int fd = shm_open(r->target + strlen(SHM_DIR), O_RDWR, 0);
  if (fd < 0) {
    usrbio_log(USRBIO_ERROR, "open %s: %s", r->target, strerror(errno));
    return -EIO;
  }
  struct stat st;
  int err = 0;
  if (usrbio_fstat(fd, &st) != 0) {
    err = -EIO;
  } else if (st.st_size < 0 || size_bytes > (size_t)st.st_size) {
    err = -EINVAL; /* pages beyond the object would be a SIGBUS on first use */
  } else {
    err = map(r, fd, size_bytes, numa);
  }
  close(fd);
  return err;
}

int usrbio_registration_open(const char *mount,
                             const uint8_t id[16],
                             const char *suffix,
                             size_t size_bytes,
                             int numa,
                             struct usrbio_registration **out) {
  struct usrbio_registration *r = NULL;
  int err = begin(mount, id, suffix, &r);
  if (err != 0) {
    return err;
  }
  err = resolve(r);
  if (err == 0) {
    err = map_existing(r, size_bytes, numa);
  }
  if (err != 0) {
    usrbio_registration_free(r);
    return err;
  }
  *out = r;
  return 0;
}

int usrbio_registration_renew(struct usrbio_registration *r) {
  if (!usrbio_may_take(&r->owner)) {
    return -EBUSY;
  }
  int err = register_link(r, true);
  if (err == 0) {
    usrbio_own(&r->owner);
    atomic_store(&r->probe->lost, false);
  }
  return err;
}

static void run_probe(struct usrbio_daemon *d, struct usrbio_call *call) {
  struct probe *p = (struct probe *)(void *)call;
  if (usrbio_daemon_lost(d, p->name)) {
    atomic_store(&p->lost, true);
  }
}

static void probe_late(struct usrbio_daemon *d, struct usrbio_call *call) {
  (void)d;
  struct probe *p = (struct probe *)(void *)call;
  atomic_store(&p->asking, false);
  unref(p);
}

/* In a forked child a new one: whether the parent was asking is nothing to the child. */
static struct probe *probe_of(struct usrbio_registration *r) {
  if (r->probe->generation != usrbio_generation()) {
    struct probe *own = calloc(1, sizeof(*own));
    if (own == NULL) {
      return r->probe;
    }
    start_probe(own, r->name);
    r->probe = own;
  }
  return r->probe;
}

/* Returns false if a question is on its way. */
static bool begin_probe(struct probe *p) {
  if (atomic_exchange(&p->asking, true)) {
    return false;
  }
  atomic_fetch_add(&p->refs, 1);
  p->call.run = run_probe;
  p->call.late = probe_late;
  return true;
}

bool usrbio_registration_lost(struct usrbio_registration *r) {
  struct probe *p = probe_of(r);
  if (!atomic_load(&p->lost) && begin_probe(p)) {
    usrbio_tell(r->daemon, &p->call);
  }
  return atomic_load(&p->lost);
}

int usrbio_registration_probe(struct usrbio_registration *r) {
  struct probe *p = probe_of(r);
  int err = 0;
  if (!atomic_load(&p->lost)) {
    if (!begin_probe(p)) {
      return -EAGAIN;
    }
    err = usrbio_ask(r->daemon, &p->call);
    if (err == 0) {
      probe_late(r->daemon, &p->call);
    }
  }
  return atomic_load(&p->lost) ? -ENOTCONN : err;
}

struct usrbio_daemon *usrbio_registration_daemon(const struct usrbio_registration *r) { return r->daemon; }

void usrbio_registration_unlink_shm(struct usrbio_registration *r) {
  if (r->shm_name[0] == '\0' || !usrbio_may_take(&r->owner)) {
    return;
  }
  if (shm_unlink(r->shm_name) != 0 && errno != ENOENT) {
    usrbio_log(USRBIO_WARN, "remove %s%s: %s", SHM_DIR, r->shm_name, strerror(errno));
  }
  r->shm_name[0] = '\0';
}

void usrbio_registration_remove(struct usrbio_registration *r) {
  struct link_call *c = usrbio_may_take(&r->owner) ? link_call(r) : NULL;
  if (c == NULL) {
    return;
  }
  c->call.run = run_unlink;
  c->call.late = free_late;
  c->call.must_run = true;
  if (usrbio_ask(r->daemon, &c->call) != 0) {
    return;
  }
  /* ENOENT: a process that opened it has removed it. ENOTCONN: the daemon and its registrations are gone. */
  if (c->err != 0 && c->err != -ENOENT && c->err != -ENOTCONN) {
    usrbio_log(USRBIO_WARN, "deregister %s: %s", c->name, strerror(-c->err));
  }
  free(c);
}

uint8_t *usrbio_registration_base(const struct usrbio_registration *r) { return r->base; }

const uint8_t *usrbio_registration_id(const struct usrbio_registration *r) { return r->id; }
