# SPDX-License-Identifier: Apache-2.0
"""Everything that the stubs declare, as a program uses it. Only mypy reads this (test_stubs)."""

import os
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory

import hf3fs_py_usrbio
from hf3fs_fuse import fuse, fuse_demo
from hf3fs_fuse.io import IorPriority, deregister_fd, extract_mount_point, force_fsync, hardlink, iovec
from hf3fs_fuse.io import make_ioring, make_iovec, punch_hole, read_file, register_fd


def blocking(path: str) -> bytes:
    fd = os.open(path, os.O_RDWR)
    register_fd(fd)
    mount = extract_mount_point(path) or fuse.get_mount_point(path)
    shm = SharedMemory(create=True, size=4096)
    buffer: iovec = make_iovec(shm, mount, block_size=4096)
    ring = make_ioring(mount, 4, priority=IorPriority.LOW, timeout=5)
    ring.prepare(buffer[0:10], True, fd, 0, userdata=3).submit()
    ring.prepare(buffer, True, fd, 0)
    total: int = len(buffer) + ring.size_for_entries(4) + buffer.base_off
    for done in ring.submit().wait(min_results=1, timeout=timedelta(seconds=1)):
        total += done.result
    total += len(ring.wait(timeout=0.5))
    ring.prepare("not an iovec", True, fd, 0)  # type: ignore[arg-type]
    ring.wait(1)  # type: ignore[misc]
    part: hf3fs_py_usrbio.iovec = buffer.slice_by(bytearray(1))
    part[0:1] = bytes(memoryview(buffer)[0:1])
    force_fsync(fd)
    punch_hole(path, [0], [4096])
    hardlink(path, path + ".2")
    deregister_fd(fd)
    fuse_demo.demo(path)
    print(hf3fs_py_usrbio.__version__, total)
    return read_file(path) or b""


async def in_a_loop(mount: str, fd: int) -> int:
    with make_ioring(mount, 4, False) as ring, make_iovec(1 << 20, mount) as buffer:
        buffer[0:3] = b"abc"
        ring.prepare(buffer.iov[0:3], False, fd, 0)
        done = await ring.submit().wait_async(min_results=1)
        return done[0].result
