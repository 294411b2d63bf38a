/* SPDX-License-Identifier: Apache-2.0 */

/* Names under <mount>/3fs-virt/iovs, by which buffers and rings are registered with the daemon. */

#ifndef USRBIO_LINKNAME_H
#define USRBIO_LINKNAME_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hf3fs_usrbio.h"

#define USRBIO_MOUNT_BYTES sizeof(((struct hf3fs_iov *)0)->mount_point)
#define USRBIO_UUID_TEXT_BYTES 37   /* 8-4-4-4-12 and the NUL */
#define USRBIO_SUFFIX_BYTES 128     /* longest: .r-2147483648.ph.t2147483647.f<64 digits> */
#define USRBIO_PATH_BYTES (PATH_MAX + sizeof("/3fs-virt/iovs/") + USRBIO_UUID_TEXT_BYTES + USRBIO_SUFFIX_BYTES)

/* Makes a random (version 4) id. Returns 0 or a negated errno. */
int usrbio_uuid_new(uint8_t id[16]);
void usrbio_uuid_text(const uint8_t id[16], char text[USRBIO_UUID_TEXT_BYTES]);

/* Returns false for a string that is null, empty or too long for struct hf3fs_iov. */
bool usrbio_mount_ok(const char *mount);

/* ".b<n>", or nothing for 0. */
void usrbio_iov_suffix(char suffix[USRBIO_SUFFIX_BYTES], size_t block_size);

/*
 * ".{r|w}<depth>[.ph|.pl].t<ms>[.f<binary>]". Only this function formats it: creation, rollback
 * and destruction use the string made here, so they cannot differ.
 */
void usrbio_ior_suffix(char suffix[USRBIO_SUFFIX_BYTES],
                       bool for_read,
                       int io_depth,
                       int priority,
                       int timeout_ms,
                       uint64_t flags);

/* <mount>/3fs-virt/iovs/<name>. mount may be a path longer than usrbio_mount_ok allows. */
void usrbio_iovs_path(char path[USRBIO_PATH_BYTES], const char *mount, const char *name);

#endif
