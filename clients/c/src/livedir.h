/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The open <mount>/3fs-virt/iovs directory that tells the daemon we live. When its last copy is
 * closed, by exit or SIGKILL, the daemon drops what we registered.
 */

#ifndef USRBIO_LIVEDIR_H
#define USRBIO_LIVEDIR_H

/*
 * Call it in the thread that has just registered something: a 3FS daemon matches the two by thread id.
 * One handle per mount string and process, kept for good and never listed. A handle whose daemon is
 * gone is replaced; a forked child gets its own and keeps the inherited one, which is what lets the
 * parent's registrations outlive the parent.
 */
void usrbio_livedir_hold(const char *mount);

#endif
