# SPDX-License-Identifier: Apache-2.0
"""RTP-LLM and KVCM: a large iov in blocks of 1 MiB, and a ring for every single operation."""

import datetime
import errno
import os
from multiprocessing import shared_memory

from engines.case import EngineCase, content
from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

BLOCK_BYTES = 1 << 20
IOV_BYTES = 16 * BLOCK_BYTES
READ_SECONDS, WRITE_SECONDS = 120.0, 120.0  # the engine has one and two, which a busy machine may take
OPERATIONS = 100


class Blocks(EngineCase):
    def setUp(self):
        super().setUp()
        self.shm = shared_memory.SharedMemory(create=True, size=IOV_BYTES)
        self.iov = make_iovec(self.shm, self.mount, block_size=BLOCK_BYTES)
        self.shm.unlink()
        self.addCleanup(self.close)
        self.path = os.path.join(self.base, "1_2")

    def close(self):
        del self.iov
        self.shm.close()

    def operate(self, fd, for_read, pieces, seconds, file_offset=0):
        """pieces: offset in the iov and length, of consecutive parts of the file."""
        ring = make_ioring(self.mount, len(pieces) + 1, for_read=for_read, io_depth=0, timeout=0)
        for at, length in pieces:
            ring.prepare(self.iov[at : at + length], for_read, fd, file_offset)
            file_offset += length
        ring.submit()
        done = ring.wait(min_results=len(pieces), timeout=datetime.timedelta(seconds=seconds))
        return {request.base_off: request.result for request in done}

    def whole(self, length, start=0):
        """Pieces of one block each; the last one may be shorter."""
        return [(start + at, min(BLOCK_BYTES, length - at)) for at in range(0, length, BLOCK_BYTES)]

    def write(self, data):
        """Under the final name, as these engines do, and synced at the end."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        register_fd(fd)
        self.shm.buf[: len(data)] = data
        pieces = self.whole(len(data))
        self.assertEqual(self.operate(fd, False, pieces, WRITE_SECONDS), dict(pieces))
        os.fsync(fd)
        self.assertEqual(os.stat(self.path).st_size, len(data))
        deregister_fd(fd)
        os.close(fd)

    def read(self, length):
        fd = os.open(self.path, os.O_RDWR)
        register_fd(fd)
        pieces = self.whole(length)
        self.assertEqual(self.operate(fd, True, pieces, READ_SECONDS), dict(pieces))
        deregister_fd(fd)
        os.close(fd)
        return bytes(self.shm.buf[:length])

    def test_the_link_tells_the_block_size(self):
        self.assertRegex(os.path.basename(self.iov.link), r"^[0-9a-f-]{36}\.b1048576$")
        self.assertIn(os.path.basename(self.iov.link), self.registrations())

    def test_files_of_many_sizes(self):
        for size in (1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 7 * BLOCK_BYTES + 12345, IOV_BYTES):
            data = content(size, size)
            self.write(data)
            self.shm.buf[:size] = bytes(size)
            self.assertTrue(self.read(size) == data, f"{size} bytes")
            os.unlink(self.path)

    def test_rings_come_and_go(self):
        self.write(content(1, BLOCK_BYTES))
        before = self.registrations()
        fd = os.open(self.path, os.O_RDWR)
        register_fd(fd)
        for n in range(OPERATIONS):
            at = n % 16 * BLOCK_BYTES
            self.assertEqual(self.operate(fd, True, [(at, BLOCK_BYTES)], READ_SECONDS), {at: BLOCK_BYTES})
        self.assertEqual(self.registrations(), before)
        deregister_fd(fd)
        os.close(fd)

    def test_no_request_crosses_a_block(self):
        """That request fails; the others in its batch do not."""
        self.write(content(1, BLOCK_BYTES))
        fd = os.open(self.path, os.O_RDONLY)
        register_fd(fd)
        pieces = [(0, 8192), (BLOCK_BYTES - 4096, 8192), (BLOCK_BYTES + 4096, 8192)]
        results = self.operate(fd, True, pieces, READ_SECONDS)
        self.assertEqual(results, {0: 8192, BLOCK_BYTES - 4096: -errno.EINVAL, BLOCK_BYTES + 4096: 8192})
        deregister_fd(fd)
        os.close(fd)
