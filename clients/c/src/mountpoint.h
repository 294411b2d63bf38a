/* SPDX-License-Identifier: Apache-2.0 */

/* Which hf3fs mount a path lies in. */

#ifndef USRBIO_MOUNTPOINT_H
#define USRBIO_MOUNTPOINT_H

#include <stdbool.h>
#include <stdio.h>

/*
 * The deepest mount of mountinfo (the format of /proc/self/mountinfo) that contains path, which must
 * be canonical. A mount counts if it is of type fuse.hf3fs (unless any_type) and shows a 3fs-virt
 * directory, as has_virt tells; only mounts that contain path are asked, because asking a hung one
 * hangs. Returns a string to free, or null.
 */
char *usrbio_mountpoint_find(FILE *mountinfo, const char *path, bool any_type, bool (*has_virt)(const char *mount));

#endif
