/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The identity of this process, across fork, clone and vfork.
 *
 * A child has copies of all that its parent registered, and owns none of it while the parent lives. A process id
 * does not tell the two apart: a child's child may get its grandparent's. So processes are told apart by their
 * generation, which is one more in a child than in its parent: whatever this memory says of another generation is of
 * an ancestor.
 */

#ifndef USRBIO_PROCESS_H
#define USRBIO_PROCESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Never 0. No system call, except for the first in a process. */
uint32_t usrbio_generation(void);

/*
 * Whether this is a child that runs in its parent's memory, as between vfork and exec: it is of the same generation,
 * and what it frees is gone for its parent. A system call.
 */
bool usrbio_in_parents_memory(void);

/* Whether a process is running; a zombie is not. */
bool usrbio_process_lives(pid_t id);

/* Who has made something. */
struct usrbio_owner {
  _Atomic uint32_t generation;
  _Atomic pid_t id;
};

/* Notes this process. */
void usrbio_own(struct usrbio_owner *owner);

/* Whether the owner is this process, or one that runs in its memory. */
bool usrbio_is_own(const struct usrbio_owner *owner);

/* Whether this process may remove or use it: its own, or left by a process that has ended. System calls. */
bool usrbio_may_take(const struct usrbio_owner *owner);

/*
 * The one lock of the slow paths (fd table, list of daemons). fork() takes it, so a child never
 * inherits it locked. Therefore no code may call into the file system while holding it: a mount that
 * hangs would block every fork().
 */
void usrbio_lock(void);
void usrbio_unlock(void);

#endif
