/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The daemon of one mount, and the thread of this library that asks it.
 *
 * A daemon that was stopped answers nothing, and the system call that waits for it cannot be ended. So
 * all such calls are made in one thread for each mount, and who wants the answer waits for that thread: at
 * most 30 seconds, and after a first second a signal that the program handles ends the wait as well. From
 * then on nobody waits for this daemon until it answers; what is to be removed is removed then. A 3FS
 * daemon knows a client by its thread: all that one process registers has the same.
 */

#ifndef USRBIO_DAEMON_H
#define USRBIO_DAEMON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct usrbio_daemon;

/* The head of a question, which is in memory of malloc. */
struct usrbio_call {
  void (*run)(struct usrbio_daemon *daemon, struct usrbio_call *call); /* in the thread; may block */
  /* After run, or without it, if nobody waits for the answer any more: undoes what must be undone, and frees. */
  void (*late)(struct usrbio_daemon *daemon, struct usrbio_call *call);
  bool must_run; /* even if the daemon is known not to answer; else only late is called, at once */
  struct usrbio_call *next;
  _Atomic int state;
};

/*
 * Finds or makes the entry for a mount, which may be a relative path. Entries live for ever; a forked
 * child has its own. Returns 0 or a negated errno.
 */
int usrbio_daemon_of(const char *mount, struct usrbio_daemon **out);

/* The absolute path of the mount. */
const char *usrbio_daemon_mount(const struct usrbio_daemon *daemon);

/*
 * Returns 0 if call has run; it is the caller's then. Else -ETIMEDOUT or -EINTR, and call is not to be
 * touched: it may still run, and late follows or has been called.
 */
int usrbio_ask(struct usrbio_daemon *daemon, struct usrbio_call *call);

/* Lets call run without waiting. */
void usrbio_tell(struct usrbio_daemon *daemon, struct usrbio_call *call);

/*
 * For a call's run: opens the iovs directory and keeps it open, which tells the daemon that we live. When the
 * last copy is closed, by exit or SIGKILL, the daemon drops what we registered. The descriptor is never
 * listed. If its daemon is gone, it is replaced. A forked child keeps the inherited one, so that the parent's
 * registrations outlive the parent.
 */
void usrbio_daemon_hold(struct usrbio_daemon *daemon);

/* For a call's run: whether the daemon that knew this registration is gone. */
bool usrbio_daemon_lost(struct usrbio_daemon *daemon, const char *name);

#endif
