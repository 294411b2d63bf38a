# SPDX-License-Identifier: Apache-2.0
"""Writes and reads a file through rings: python3 -m hf3fs_fuse.fuse_demo [FILE_ON_A_3FS_MOUNT]"""

import os
import sys

from hf3fs_fuse.io import deregister_fd, extract_mount_point, make_ioring, make_iovec, register_fd


def demo(path):
    """Writes two halves of a new file, reads them back in the other order, removes the file; prints what it does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        mount = extract_mount_point(path)
        if mount is None:
            raise ValueError(f"{path} is not on a 3FS mount")
        register_fd(fd)  # before the first prepare, until the file is closed
        try:
            with make_iovec(1024, mount) as buffer, make_ioring(mount, 2, for_read=False) as writes, make_ioring(mount, 2) as reads:
                memoryview(buffer)[:] = bytes(range(256)) * 4
                _transfer(writes, False, [(buffer[:512], fd, 0), (buffer[512:], fd, 512)])
                memoryview(buffer)[:] = bytes(1024)
                _transfer(reads, True, [(buffer[:512], fd, 512), (buffer[512:], fd, 0)])
                same = bytes(buffer) == bytes(range(256)) * 4
        finally:
            deregister_fd(fd)  # before the file is closed
    finally:
        os.close(fd)
        os.unlink(path)
    if not same:
        raise RuntimeError("read other bytes than were written")
    print(f"1024 bytes written to {path} and read back")


def _transfer(ring, read, requests):
    for part, fd, offset in requests:
        ring.prepare(part, read, fd, offset, userdata=len(part))
    for done in ring.submit().wait(min_results=len(requests), timeout=10.0):
        print("read" if read else "write", done.result)
        if done.result != done.userdata:
            raise RuntimeError(f"{done.result} instead of {done.userdata} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    demo(sys.argv[1] if len(sys.argv) == 2 else "/hf3fs-cluster/testread")
