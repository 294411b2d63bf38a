# SPDX-License-Identifier: Apache-2.0
"""Engines use the shared memory as tensors: no byte is copied between them and the rings."""

import os
from multiprocessing import shared_memory

import daemon
from engines.case import EngineCase
from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

IOV_BYTES = 1 << 20


class Arrays(EngineCase):
    def setUp(self):
        super().setUp()
        self.shm = shared_memory.SharedMemory(create=True, size=IOV_BYTES)
        self.iov = make_iovec(self.shm, self.mount)
        self.shm.unlink()
        self.addCleanup(self.close)

    def close(self):
        del self.iov
        self.shm.close()

    def transfer(self, path, window, for_read):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        register_fd(fd)
        ring = make_ioring(self.mount, 1, for_read=for_read)
        (done,) = ring.prepare(window, for_read, fd, 0).submit().wait(min_results=1)
        deregister_fd(fd)
        os.close(fd)
        return done.result

    def round_trip(self, array_over, values):
        """array_over(buffer) returns a buffer as an array. values fill half of the iov."""
        path = os.path.join(self.base, "tensor")
        half = IOV_BYTES // 2
        lower, upper = self.iov[:half], self.iov[half:]
        array_over(lower)[:] = values
        self.assertEqual(self.transfer(path, lower, False), half)
        self.assertEqual(self.transfer(path, upper, True), half)
        for buffer in (upper, memoryview(self.iov.iov)[half:], self.shm.buf[half:]):
            self.assertTrue(bool((array_over(buffer) == values).all()))

    def test_numpy(self):
        try:
            import numpy
        except ImportError as error:
            daemon.not_tested(f"{error}; Debian's package is python3-numpy")
        values = numpy.arange(IOV_BYTES // 2 // 4, dtype=numpy.float32)
        self.round_trip(lambda buffer: numpy.frombuffer(buffer, dtype=numpy.float32), values)

    def test_torch(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(f"NOT TESTED: {error}")
        values = torch.arange(IOV_BYTES // 2 // 2).to(torch.bfloat16)
        self.round_trip(lambda buffer: torch.frombuffer(buffer, dtype=torch.bfloat16), values)
