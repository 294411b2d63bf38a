# SPDX-License-Identifier: Apache-2.0
"""What an errno means here, and the cure."""

import errno
import os

_BY_ERRNO = {
    errno.ENOTCONN: "the daemon of this mount is gone; start it, then open files, iovecs and rings again",
    errno.EACCES: "the daemon cannot open the shared memory; client and daemon must see the same /dev/shm, "
    "and its user must be allowed to open it",
    errno.EMFILE: "the daemon has as many registrations as it takes; delete iovecs and rings that are not needed",
    errno.EROFS: "this mount is read-only",
    errno.EIO: "shared memory could not be made; see `df /dev/shm`",
    errno.ENOSPC: "there is no room; see `df /dev/shm`",
}


def os_error(number, *, path=None, says=None):
    """An OSError that names path and what to do about it. says: texts that fit the caller better, by errno."""
    text = (says or {}).get(number) or _BY_ERRNO.get(number) or os.strerror(number)
    return OSError(number, text, path) if path is not None else OSError(number, text)


def registration_error(number, mount, invalid):
    """Why an iovec or ring could not be registered at mount; invalid says what EINVAL means for it."""
    # A look at the mount itself tells a wrong path from a wrong argument.
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EACCES):
        try:
            os.stat(os.path.join(mount, "3fs-virt", "iovs"))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                text = (
                    "there is no 3FS mounted here (no 3fs-virt/iovs in it); "
                    "pass what extract_mount_point() returns, and see that the daemon runs"
                )
                return OSError(error.errno, text, mount)
    return os_error(number, path=mount, says={errno.EINVAL: invalid})
