/* SPDX-License-Identifier: Apache-2.0 */

/* Who we are, across fork. */

#ifndef USRBIO_PROCESS_H
#define USRBIO_PROCESS_H

#include <pthread.h>
#include <sys/types.h>

/* getpid() without the system call; right in a forked child too. */
pid_t usrbio_process_id(void);

/*
 * The one lock of the slow paths (fd table, held directories). fork() takes it, so a child never
 * inherits it locked; therefore nobody may call into the file system while holding it, or a hung
 * mount would hang every fork().
 */
void usrbio_lock(void);
void usrbio_unlock(void);

#endif
