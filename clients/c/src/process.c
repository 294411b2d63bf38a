/* SPDX-License-Identifier: Apache-2.0 */

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pid_t process_id;

pid_t usrbio_process_id(void) { return process_id; }

bool usrbio_process_lives(pid_t pid) {
  enum { EXITING = 4 }; /* PF_EXITING of linux/sched.h: set before anything is closed, and kept by a zombie */
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return errno != ENOENT && (kill(pid, 0) == 0 || errno != ESRCH);
  }
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) {
    return false;
  }
  text[n] = '\0';
  const char *after_name = strrchr(text, ')');
  unsigned flags = 0;
  if (after_name == NULL || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) {
    return true;
  }
  return (flags & EXITING) == 0;
}

bool usrbio_process_owns(pid_t pid) { return pid == process_id || !usrbio_process_lives(pid); }

void usrbio_lock(void) { pthread_mutex_lock(&mu); }

void usrbio_unlock(void) { pthread_mutex_unlock(&mu); }

static void after_fork_in_child(void) {
  process_id = getpid();
  usrbio_unlock();
}

__attribute__((constructor)) static void learn_process_id(void) {
  process_id = getpid();
  pthread_atfork(usrbio_lock, usrbio_unlock, after_fork_in_child);
}
