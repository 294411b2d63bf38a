/* SPDX-License-Identifier: Apache-2.0 */

/* An ordinary directory that looks like a mount: its 3fs-virt/iovs takes links, and has a semaphore. It goes with the test. */

#ifndef FAKEMOUNT_H
#define FAKEMOUNT_H

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "janitor.h"

struct fakemount {
  char path[64];
  char sem_name[64];
  sem_t *sem;
};

static inline void fakemount_path(const struct fakemount *m, const char *name, char path[PATH_MAX]) {
  snprintf(path, PATH_MAX, "%s/3fs-virt/iovs/%s", m->path, name);
}

static inline void fakemount_make(struct fakemount *m) {
  char path[PATH_MAX], target[PATH_MAX];
  strcpy(m->path, "/tmp/usrbio-fakemount-XXXXXX");
  CHECK(mkdtemp(m->path) != NULL);
  snprintf(m->sem_name, sizeof(m->sem_name), "/usrbio-test-%d", (int)getpid());
  janitor_start(m->path, m->sem_name);
  snprintf(path, sizeof(path), "%s/3fs-virt", m->path);
  CHECK_EQ(mkdir(path, 0777), 0);
  fakemount_path(m, "", path);
  CHECK_EQ(mkdir(path, 0777), 0);
  m->sem = sem_open(m->sem_name, O_CREAT | O_EXCL, 0600, 0);
  CHECK(m->sem != SEM_FAILED);
  snprintf(target, sizeof(target), "/dev/shm/sem.%s", m->sem_name + 1);
  fakemount_path(m, "submit-ios", path);
  CHECK_EQ(symlink(target, path), 0);
}

static inline int fakemount_registrations(const struct fakemount *m) {
  char path[PATH_MAX];
  fakemount_path(m, "", path);
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  for (struct dirent *e; (e = readdir(dir)) != NULL;) {
    count += e->d_name[0] != '.' && strcmp(e->d_name, "submit-ios") != 0;
  }
  closedir(dir);
  return count;
}

static inline int fakemount_posts(const struct fakemount *m) {
  int value;
  CHECK_EQ(sem_getvalue(m->sem, &value), 0);
  return value;
}

#endif
