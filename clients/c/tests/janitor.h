/* SPDX-License-Identifier: Apache-2.0 */

/* Removes what a test makes outside its memory, also when it fails or is killed. */

#ifndef JANITOR_H
#define JANITOR_H

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include "check.h"

/* The shared memory to which the links in a directory lead. */
static inline void janitor_remove_targets(const char *iovs) {
  char target[PATH_MAX];
  DIR *dir = opendir(iovs);
  for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
    ssize_t length = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
    target[length > 0 ? length : 0] = '\0';
    if (strncmp(target, "/dev/shm/hf3fs-iov-", 19) == 0) {
      unlink(target);
    }
  }
  if (dir != NULL) {
    closedir(dir);
  }
}

/* Starts a process that waits for the end of this one and its children. Call it before there are any. */
static inline void janitor_start(const char *mount, const char *sem_name) {
  int end[2];
  char c, text[PATH_MAX];
  CHECK_EQ(pipe(end), 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child > 0) {
    CHECK_EQ(fcntl(end[1], F_SETFD, FD_CLOEXEC), 0);
    close(end[0]);
    return;
  }
  setsid(); /* Ctrl-C is for the test */
  close(end[1]);
  while (read(end[0], &c, 1) > 0) {
  }
  snprintf(text, sizeof(text), "%s/3fs-virt/iovs", mount);
  janitor_remove_targets(text);
  sem_unlink(sem_name);
  snprintf(text, sizeof(text), "rm -rf %s", mount);
  _exit(system(text) == 0 ? 0 : 1);
}

#endif
