/* SPDX-License-Identifier: Apache-2.0 */

/* The identity of this process, across fork. */

#ifndef USRBIO_PROCESS_H
#define USRBIO_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

/* getpid() without the system call; also correct in a forked child. */
pid_t usrbio_process_id(void);

/* Whether a process is running; a zombie is not. */
bool usrbio_process_lives(pid_t pid);

/* Whether what process pid has made is this process's: its own, or left by a process that has ended. */
bool usrbio_process_owns(pid_t pid);

/*
 * The one lock of the slow paths (fd table, list of daemons). fork() takes it, so a child never
 * inherits it locked. Therefore no code may call into the file system while holding it: a mount that
 * hangs would block every fork().
 */
void usrbio_lock(void);
void usrbio_unlock(void);

#endif
