/* SPDX-License-Identifier: Apache-2.0 */

/* This user's submit semaphores, one per priority; links in the mount name them. */

#ifndef USRBIO_SUBMITSEM_H
#define USRBIO_SUBMITSEM_H

#include <semaphore.h>

/*
 * Returns 0 or a negated errno; -EIO if the link does not name a semaphore. Never cached: names change
 * with every daemon, and posts to a stale semaphore are lost. Close with sem_close.
 */
int usrbio_submitsem_open(const char *mount, int priority, sem_t **out);

/*
 * sem_post that survives what another process of the same user may have done to the semaphore: where
 * that kills the caller (SIGBUS if the object was shrunk, SIGABRT if it was overwritten), this one does
 * nothing, and the daemon finds the request some 50 ms later. The kernel does the access, so this is
 * always a system call: 0.3 us, where sem_post has 0.01 us while the daemon is awake.
 */
void usrbio_submitsem_post(sem_t *sem);

#endif
