/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the hf3fs mount that holds a path. */

#ifndef USRBIO_MOUNTPOINT_H
#define USRBIO_MOUNTPOINT_H

#include <stdbool.h>
#include <stdio.h>

/*
 * Finds the deepest mount in mountinfo (the format of /proc/self/mountinfo) that contains path, which
 * must be canonical. A mount counts if its type is fuse.hf3fs (unless any_type) and has_virt finds a
 * 3fs-virt directory in it. has_virt is called only for mounts that contain path, because it blocks on
 * a mount that hangs. Returns a string to free, or null.
 */
char *usrbio_mountpoint_find(FILE *mountinfo, const char *path, bool any_type, bool (*has_virt)(const char *mount));

#endif
