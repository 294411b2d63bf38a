# SPDX-License-Identifier: Apache-2.0
"""Errors whose text says what an errno means here, and how to fix it."""

import contextlib
import errno
import os

_GONE = "the daemon of this mount is gone; start it, then open files, iovecs and rings again"

_BY_ERRNO = {
    errno.ENOTCONN: _GONE,
    errno.ECONNABORTED: _GONE,  # from a call that the daemon was serving when it died
    errno.EACCES: "the daemon cannot open the shared memory; client and daemon must see the same /dev/shm, "
    "and its user must be allowed to open it",
    errno.EMFILE: "the daemon accepts no more registrations; delete iovecs and rings that are not needed",
    errno.ENOMEM: "the daemon maps no more memory for this user, or memory is short; delete iovecs that are not needed, "
    "or raise --limit-mapped",
    errno.EROFS: "this mount is read-only",
    errno.EIO: "shared memory could not be created; see `df /dev/shm`",
    errno.ENOSPC: "no space left; see `df /dev/shm`",
    errno.ETIMEDOUT: "the daemon does not answer; it hangs, or was stopped (SIGSTOP, a debugger)",
    errno.EINTR: "a signal ended the wait for the daemon, which does not answer",
}


def os_error(number, *, path=None, says=None):
    """An OSError that names path and the fix. says: texts that fit the caller better, by errno."""
    text = (says or {}).get(number) or _BY_ERRNO.get(number) or os.strerror(number)
    return OSError(number, text, path) if path is not None else OSError(number, text)


def file_error(number, *names, says=None):
    """An OSError about files on a mount. names: the filename, or both names of a link."""
    text = (says or {}).get(number) or (_GONE if _BY_ERRNO.get(number) is _GONE else os.strerror(number))
    return OSError(number, text, names[0], None, *names[1:])


def descriptor_error(number, fd, says):
    """An OSError about an open file. The reason may be that its mount is dead."""
    with contextlib.suppress(OSError):
        says = {number: f"descriptor {fd}: {says.get(number) or os.strerror(number)}"}
        name = os.readlink(f"/proc/self/fd/{fd}")
        try:
            os.fstatvfs(fd)  # for fstat() the kernel may not ask the daemon
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                number, says = error.errno, {error.errno: f"descriptor {fd}: {_GONE}"}
        return OSError(number, says[number], name)
    return OSError(number, says[number])


@contextlib.contextmanager
def opened(path, flags):
    """A descriptor for use within the block."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise file_error(error.errno, path) from None
    try:
        yield fd
    finally:
        # Nothing is written through it, so close() can report nothing new.
        with contextlib.suppress(OSError):
            os.close(fd)


def registration_error(number, mount, invalid):
    """An OSError that says why an iovec or ring could not be registered; invalid is the text for EINVAL."""
    # The mount itself tells a wrong path from a wrong argument.
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EACCES):
        try:
            os.stat(os.path.join(mount, "3fs-virt", "iovs"))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                text = (
                    "there is no 3FS mounted here (no 3fs-virt/iovs in it); "
                    "pass what extract_mount_point() returns, and check that the daemon is running"
                )
                return OSError(error.errno, text, mount)
    return os_error(number, path=mount, says={errno.EINVAL: invalid})
