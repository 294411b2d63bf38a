/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's submit semaphores, one per priority, found through links in the mount. */

#ifndef USRBIO_SUBMITSEM_H
#define USRBIO_SUBMITSEM_H

#include <semaphore.h>

/*
 * 0, or a negated errno; -EIO when the link does not name a semaphore. Never cached: names change with
 * every daemon, and a stale semaphore swallows posts without a trace. Close with sem_close.
 */
int usrbio_submitsem_open(const char *mount, int priority, sem_t **out);

#endif
