# SPDX-License-Identifier: Apache-2.0
"""The client of vLLM and SGLang: one large file of equal pages, read and written in small batches."""

import datetime
import os
import threading
from multiprocessing import shared_memory

from hf3fs_fuse.io import deregister_fd, extract_mount_point, make_ioring, make_iovec, register_fd

ENTRIES = 8
TIMEOUT_MS = 1


class Client:
    """Many clients open the same file. Several threads may use one: reads and writes take turns."""

    def __init__(self, path, file_bytes, page_bytes, entries=ENTRIES, wait_seconds=None):
        self.page_bytes, self.entries = page_bytes, entries
        self.wait_at_most(wait_seconds)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, file_bytes)
        register_fd(self.fd)  # before there is any ring
        mount = extract_mount_point(path)
        self._read_shm, self._write_shm = (
            shared_memory.SharedMemory(create=True, size=page_bytes * entries) for _ in range(2)
        )
        self._read_ring = make_ioring(mount, entries, for_read=True, timeout=TIMEOUT_MS, numa=-1)
        self._write_ring = make_ioring(mount, entries, for_read=False, timeout=TIMEOUT_MS, numa=-1)
        self._read_iov = make_iovec(self._read_shm, mount)
        self._write_iov = make_iovec(self._write_shm, mount)
        self._read_shm.unlink()
        self._write_shm.unlink()
        self._reading, self._writing = threading.Lock(), threading.Lock()

    def wait_at_most(self, seconds):
        self._deadline = None if seconds is None else datetime.timedelta(seconds=seconds)

    def read(self, offsets):
        """The pages at these offsets, None for one that failed."""
        with self._reading:
            results = self._batch(self._read_ring, self._read_iov, True, offsets)
            return [
                bytes(self._read_shm.buf[slot * self.page_bytes : (slot + 1) * self.page_bytes])
                if result == self.page_bytes
                else None
                for slot, result in enumerate(results)
            ]

    def write(self, offsets, pages):
        """Whether each page was written. A page may be shorter than its place."""
        with self._writing:
            for slot, page in enumerate(pages):
                self._write_shm.buf[slot * self.page_bytes : slot * self.page_bytes + len(page)] = page
            results = self._batch(self._write_ring, self._write_iov, False, offsets)
            return [result == self.page_bytes for result in results]

    def _batch(self, ring, iov, for_read, offsets):
        """Results by count, not by request: the first completion comes first, missing ones are -1."""
        for slot, offset in enumerate(offsets):
            ring.prepare(iov[slot * self.page_bytes : (slot + 1) * self.page_bytes], for_read, self.fd, offset)
        done = ring.submit().wait(min_results=len(offsets), timeout=self._deadline)
        results = [request.result for request in done][: len(offsets)]
        return results + [-1] * (len(offsets) - len(results))

    def late(self, count, seconds):
        """Results of reads that a deadline left in the ring."""
        done = self._read_ring.wait(min_results=count, timeout=datetime.timedelta(seconds=seconds))
        return [request.result for request in done]

    def close(self):
        """Closes everything that can be closed and raises the error of close(2)."""
        try:
            deregister_fd(self.fd)
            os.close(self.fd)
        finally:
            del self._read_ring, self._write_ring, self._read_iov, self._write_iov
            self._read_shm.close()
            self._write_shm.close()
