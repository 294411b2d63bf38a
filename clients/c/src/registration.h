/* SPDX-License-Identifier: Apache-2.0 */

/* One shared-memory object, registered under one link name: a buffer, or a ring's memory. */

#ifndef USRBIO_REGISTRATION_H
#define USRBIO_REGISTRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct usrbio_registration;
struct usrbio_daemon;

struct usrbio_memory {
  size_t size_bytes;
  int numa;
  bool reserve; /* take all pages at once: -ENOSPC instead of a later SIGBUS */
};

/*
 * Makes a zero-filled object of exactly size_bytes, maps it and registers it as <new id><suffix>. If
 * this returns 0, the daemon has also mapped it. Otherwise nothing is left behind; the result is -ENOSPC or
 * -EIO for a failure of the memory, else the negated errno of symlink, or that of usrbio_ask.
 */
int usrbio_registration_create(const char *mount,
                               const char *suffix,
                               const struct usrbio_memory *memory,
                               struct usrbio_registration **out);

/* Maps what another process has registered as <id><suffix>. */
int usrbio_registration_open(const char *mount,
                             const uint8_t id[16],
                             const char *suffix,
                             size_t size_bytes,
                             int numa,
                             struct usrbio_registration **out);

/* Registers the object of that name, which is the caller's, as <id><suffix>. */
int usrbio_registration_add(const char *mount,
                            const uint8_t id[16],
                            const char *suffix,
                            const char *shm_name,
                            struct usrbio_registration **out);

/* Registers the same object under the same name again, with the daemon that is there now. */
int usrbio_registration_renew(struct usrbio_registration *registration);

/* Asks the daemon whether it knows the registration: 0, -ENOTCONN, or an error of usrbio_ask. */
int usrbio_registration_probe(struct usrbio_registration *registration);

/* Like probe, without waiting: what the last question found, after which another one is on its way. */
bool usrbio_registration_lost(struct usrbio_registration *registration);

struct usrbio_daemon *usrbio_registration_daemon(const struct usrbio_registration *registration);

/* In a forked child, whose parent lives, these two leave the parent's object and link alone. */
void usrbio_registration_unlink_shm(struct usrbio_registration *registration);
/* The link goes, at the latest when the daemon answers. The memory stays until usrbio_registration_free. */
void usrbio_registration_remove(struct usrbio_registration *registration);
void usrbio_registration_free(struct usrbio_registration *registration);

/* Null if the memory is the caller's. */
uint8_t *usrbio_registration_base(const struct usrbio_registration *registration);
const uint8_t *usrbio_registration_id(const struct usrbio_registration *registration);

#endif
