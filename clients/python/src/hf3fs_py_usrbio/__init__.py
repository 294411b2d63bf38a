# SPDX-License-Identifier: Apache-2.0
"""3FS's user-space rings, over libhf3fs_api_shared.so. Programs use hf3fs_fuse.io."""

from ._files import deregister_fd, extract_mount_point, force_fsync, hardlink, punch_hole, register_fd
from ._iovec import iovec
from ._ioring import ioring
from ._version import __version__

__all__ = [
    "deregister_fd",
    "extract_mount_point",
    "force_fsync",
    "hardlink",
    "ioring",
    "iovec",
    "punch_hole",
    "register_fd",
]
