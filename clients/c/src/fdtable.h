/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Registered files, by descriptor number. Every registration has two numbers: the caller's, and that
 * of a duplicate, which keeps the inode known to the daemon until deregistration.
 */

#ifndef USRBIO_FDTABLE_H
#define USRBIO_FDTABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Far above any kernel's nr_open in practice; it costs only address space. */
#define USRBIO_FD_LIMIT (1 << 26)

struct usrbio_file {
  uint64_t ino;
  int access_mode; /* O_RDONLY, O_WRONLY or O_RDWR, as it was at registration */
};

/* Returns the negated duplicate (< 0) or a positive errno. Does not check which file system fd is on. */
int usrbio_fdtable_add(int fd);

/* Takes either number, with either sign. Returns false if it is not registered. */
bool usrbio_fdtable_remove(int fd);

/* Lock-free. Returns 0, -EINVAL for a number outside the table, or -EBADF. */
int usrbio_fdtable_find(int fd, struct usrbio_file *file);

#endif
