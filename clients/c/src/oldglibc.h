/* SPDX-License-Identifier: Apache-2.0 */

/*
 * stat() and fstat() that programs can load with a glibc before 2.33, where these were no symbols but
 * inline. On x86-64 and aarch64, glibc's struct stat is the kernel's.
 */

#ifndef USRBIO_OLDGLIBC_H
#define USRBIO_OLDGLIBC_H

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int usrbio_stat(const char *path, struct stat *st) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

static inline int usrbio_fstat(int fd, struct stat *st) {
  return (int)syscall(SYS_fstat, fd, st);
}

#endif
