# SPDX-License-Identifier: Apache-2.0
"""Checks whether the daemon with which a ring was registered is still running."""

import contextlib
import errno
import os
import threading
import time

from ._explain import os_error

_INTERVAL_SECONDS = 1.0


def daemon_of(mount):
    """A name that changes with every start of the mount's daemon; None if there is no daemon.

    The daemon may give a user another semaphore. The names of one daemon's differ in the last two groups.
    """
    try:
        return os.readlink(os.path.join(mount, "3fs-virt", "iovs", "submit-ios")).rsplit("-", 2)[0]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOTCONN, errno.ECONNABORTED):
            return None
        raise


class Watch:
    """For waits and full rings: checks the daemon periodically, and raises if no completion can arrive.

    A daemon that hangs does not answer, and the call cannot be interrupted. So a thread makes the call,
    one thread at a time; until it has an answer, the daemon counts as running.
    """

    __slots__ = ("_mount", "_daemon", "_gone", "_asking", "_due")

    def __init__(self, mount):
        self._mount = mount
        self._daemon = daemon_of(mount)
        self._gone = self._daemon is None
        self._asking = None
        self._due = time.monotonic() + _INTERVAL_SECONDS
        self._raise_if_gone()

    def _raise_if_gone(self):
        if self._gone:
            raise os_error(errno.ENOTCONN, path=self._mount)

    def alive(self):
        self._gone = self._gone or daemon_of(self._mount) != self._daemon
        return not self._gone

    def look(self):
        """Raises ENOTCONN if the daemon has ended; call it as often as you like."""
        self._raise_if_gone()
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _INTERVAL_SECONDS
        # After a fork, threading reports the parent's thread as ended.
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread is available: skip this check
                self._asking.start()

    def _ask(self):
        with contextlib.suppress(OSError):
            self._gone = daemon_of(self._mount) != self._daemon
