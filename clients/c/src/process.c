/* SPDX-License-Identifier: Apache-2.0 */

#include "process.h"

#include <unistd.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pid_t process_id;

pid_t usrbio_process_id(void) { return process_id; }

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
