/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The open <mount>/3fs-virt/iovs directory that tells the daemon that we are alive. When its last copy
 * is closed, by exit or SIGKILL, the daemon drops what we registered.
 */

#ifndef USRBIO_LIVEDIR_H
#define USRBIO_LIVEDIR_H

/*
 * Call it in the thread that has just registered something: a 3FS daemon matches the two by thread id.
 * There is one handle per mount string and process. It is never closed and never listed. If its daemon
 * is gone, it is replaced. A forked child gets its own handle and keeps the inherited one, so that the
 * parent's registrations outlive the parent.
 */
void usrbio_livedir_hold(const char *mount);

#endif
