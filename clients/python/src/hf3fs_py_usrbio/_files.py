# SPDX-License-Identifier: Apache-2.0
"""Files on a 3FS mount: finding the mount, registration, and ioctls."""

import array
import errno
import fcntl
import operator
import os
from ctypes import create_string_buffer

from . import _library
from ._arguments import INT_MAX, INT_MIN, U64_MAX, integer, path_bytes
from ._explain import descriptor_error, file_error, opened, os_error

_IOCTL_FSYNC = 0x8004680B
_RANGES_MAX = 1000

_PUNCH_SAYS = {
    errno.EINVAL: "punch_hole: ranges begin and end at multiples of st_blksize, in a regular file",
    errno.ENOTTY: "not a file of a 3FS mount",
}


class MissingPath(FileNotFoundError, RuntimeError):
    """3FS's own library raises RuntimeError for a path that does not exist."""


def extract_mount_point(path):
    """The 3FS mount that holds path, which must exist; None if it is not on 3FS."""
    encoded = path_bytes(path)
    try:
        os.stat(encoded)
    except FileNotFoundError as error:
        raise MissingPath(error.errno, "there is no such file or directory", path) from None
    except OSError as error:
        raise os_error(error.errno, path=path, says={errno.EACCES: os.strerror(errno.EACCES)}) from None
    size = 4096
    while True:
        mount = create_string_buffer(size)
        length = _library.extract_mount_point(mount, size, encoded)
        if length <= size:
            return os.fsdecode(mount.value) if length > 0 else None
        size = length


def register_fd(fd, flags=0):
    """Registers an open file for ioring.prepare(). Call deregister_fd() before closing it."""
    fd = integer("fd", fd, INT_MIN, INT_MAX)
    error = _library.reg_fd(fd, integer("flags", flags, 0, U64_MAX))
    if error > 0:
        says = {
            errno.EBADF: "not an open file of a 3FS mount",
            errno.EINVAL: "already registered; call deregister_fd() before close()",
            errno.EMFILE: "too many open files; raise `ulimit -n`, since a registered file takes two descriptors",
        }
        raise descriptor_error(error, fd, says)


def deregister_fd(fd):
    """Undoes register_fd(). Never raises."""
    number = operator.index(fd)
    if INT_MIN <= number <= INT_MAX:
        _library.dereg_fd(number)


def force_fsync(fd):
    """Makes the size that stat() shows exact, whichever process wrote the file."""
    fd = integer("fd", fd, INT_MIN, INT_MAX)
    try:
        return fcntl.ioctl(fd, _IOCTL_FSYNC)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", errno.EBADF)
        says = {errno.ENOTTY: "not an open file of a 3FS mount", errno.EBADF: "not an open file"}
        raise descriptor_error(number, fd, says) from None


def hardlink(target, link_name):
    """Gives a file a second name. The daemon creates the link."""
    error = _library.hardlink(path_bytes(target), path_bytes(link_name))
    if error != 0:
        raise file_error(error, target, link_name)


def punch_hole(filename=None, start=None, end=None, flags=0, *, fd=None):
    """Removes the whole chunks (st_blksize) in [start[i], end[i]). filename: a path or a descriptor."""
    if (filename is None) == (fd is None):
        raise TypeError("punch_hole() takes a path or a descriptor")
    if start is None or end is None:
        raise TypeError("punch_hole() takes a list of starts and a list of ends")
    try:
        starts, ends = array.array("Q"), array.array("Q")
        starts.extend(iter(start))  # by items: array would take bytes as its own memory
        ends.extend(iter(end))
    except OverflowError:
        raise ValueError("the start and end of a range must be between 0 and 2**64 - 1") from None
    if len(starts) != len(ends):
        raise RuntimeError(f"{len(starts)} starts, but {len(ends)} ends")
    if len(starts) > _RANGES_MAX:
        raise RuntimeError(f"{len(starts)} ranges are too many; pass at most {_RANGES_MAX} per call")
    flags = integer("flags", flags, 0, U64_MAX)
    given = filename if fd is None else fd
    if hasattr(given, "__index__"):
        number = integer("fd", given, INT_MIN, INT_MAX)
        error = _punch(number, starts, ends, flags)
        if error != 0:
            raise descriptor_error(error, number, _PUNCH_SAYS)
        return
    with opened(given, os.O_RDWR) as number:
        error = _punch(number, starts, ends, flags)
        if error != 0:
            raise file_error(error, given, says=_PUNCH_SAYS)


def _punch(fd, starts, ends, flags):
    return _library.punchhole(fd, len(starts), starts.buffer_info()[0], ends.buffer_info()[0], flags)
