/* SPDX-License-Identifier: Apache-2.0 */

#ifndef USRBIO_IOCTL_H
#define USRBIO_IOCTL_H

/* Returns 0, EBADF if fd is no open file of a 3FS, or ENOTCONN if its daemon is gone. */
int usrbio_check_hf3fs(int fd);

#endif
