# SPDX-License-Identifier: Apache-2.0
"""Checks numbers and paths for C, which would truncate them silently."""

import errno
import os
from operator import index

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
INT64_MAX, U64_MAX = 2**63 - 1, 2**64 - 1

MOUNT_BYTES_MAX = 255


def integer(name, value, least, most):
    """value as an int between least and most."""
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, which is not between {least} and {most}")
    return number


def path_bytes(path):
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"{path!r} contains a null byte")
    return encoded


def mount_path(mount):
    """The mount as used in link names: absolute, because they outlive a chdir."""
    if mount is None:
        raise TypeError("hf3fs_mount_point is None, as extract_mount_point() returns for paths that are not on 3FS")
    text = os.fsdecode(path_bytes(mount))
    if not text:
        raise OSError(errno.EINVAL, "the mount point is empty; pass what extract_mount_point() returns")
    if not os.path.isabs(text):
        text = os.path.join(os.getcwd(), text)
    text = text.rstrip("/") or "/"
    if len(os.fsencode(text)) > MOUNT_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, f"a mount point may have at most {MOUNT_BYTES_MAX} bytes", text)
    return text
