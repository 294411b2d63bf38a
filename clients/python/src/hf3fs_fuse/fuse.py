# SPDX-License-Identifier: Apache-2.0
"""Paths of mounts that follow 3FS's convention, /hf3fs/CLUSTER."""

import os


def get_mount_point(p):
    """The first two levels of p's real path. Only the name counts; io.extract_mount_point() looks at mounts."""
    return os.path.join("/", *os.path.realpath(os.fspath(p)).split("/")[1:3])
