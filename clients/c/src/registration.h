/* SPDX-License-Identifier: Apache-2.0 */

/* One shared-memory object, registered under one link name: a buffer, or a ring's memory. */

#ifndef USRBIO_REGISTRATION_H
#define USRBIO_REGISTRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct usrbio_registration;

/*
 * Makes a zero-filled object of exactly size_bytes, maps it and registers it as <new id><suffix>. If
 * this returns 0, the daemon has also mapped it. Otherwise nothing is left behind; the result is -EIO
 * for a failure of the memory, else the negated errno of symlink.
 */
int usrbio_registration_create(const char *mount,
                               const char *suffix,
                               size_t size_bytes,
                               int numa,
                               struct usrbio_registration **out);

/* Maps what another process has registered as <id><suffix>. */
int usrbio_registration_open(const char *mount,
                             const uint8_t id[16],
                             const char *suffix,
                             size_t size_bytes,
                             int numa,
                             struct usrbio_registration **out);

void usrbio_registration_unlink_shm(struct usrbio_registration *registration);
void usrbio_registration_destroy(struct usrbio_registration *registration);

uint8_t *usrbio_registration_base(const struct usrbio_registration *registration);
const uint8_t *usrbio_registration_id(const struct usrbio_registration *registration);

#endif
