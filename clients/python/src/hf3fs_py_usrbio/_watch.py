# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon that a ring was registered with is still there."""

import errno
import os
import time

from ._explain import os_error

_INTERVAL_SECONDS = 1.0


def daemon_of(mount):
    """A name that changes with every start of the mount's daemon; None if there is none."""
    try:
        return os.readlink(os.path.join(mount, "3fs-virt", "iovs", "submit-ios"))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOTCONN, errno.ECONNABORTED):
            return None
        raise


class Watch:
    """For one wait that has no end: looks now and then, and raises when nothing can come any more."""

    __slots__ = ("_mount", "_daemon", "_next")

    def __init__(self, mount, daemon):
        self._mount = mount
        self._daemon = daemon
        self._next = time.monotonic() + _INTERVAL_SECONDS

    def look(self):
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL_SECONDS
        if daemon_of(self._mount) != self._daemon:
            raise os_error(errno.ENOTCONN, path=self._mount)
