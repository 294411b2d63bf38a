/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's submit semaphores, one per priority; links in the mount name them. */

#ifndef USRBIO_SUBMITSEM_H
#define USRBIO_SUBMITSEM_H

#include <semaphore.h>

/*
 * Returns 0 or a negated errno; -EIO if the link does not name a semaphore. Never cached: names change
 * with every daemon, and posts to a stale semaphore are lost. Close with sem_close.
 */
int usrbio_submitsem_open(const char *mount, int priority, sem_t **out);

#endif
