# SPDX-License-Identifier: Apache-2.0
"""LMCache's remote connector: a client for each thread, a file for each chunk, one request in flight."""

import os
import threading
from multiprocessing import shared_memory

from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

IOV_BYTES = 200 << 20
ENTRIES = 256
TIMEOUT_MS = 200


class Client:
    """Belongs to the thread that made it."""

    def __init__(self, mount, iov_bytes):
        owner = f"3FSClient_{os.getpid()}_{threading.get_native_id()}"
        self.names = [f"{owner}_rd", f"{owner}_wt"]
        self.read_shm, self.write_shm = (
            shared_memory.SharedMemory(name=name, create=True, size=iov_bytes) for name in self.names
        )
        self.read_iov = make_iovec(self.read_shm, mount, block_size=0, numa=-1)
        self.write_iov = make_iovec(self.write_shm, mount, block_size=0, numa=-1)
        self.read_ring = make_ioring(mount, ENTRIES, for_read=True, timeout=TIMEOUT_MS, numa=-1)
        self.write_ring = make_ioring(mount, ENTRIES, for_read=False, timeout=TIMEOUT_MS, numa=-1)
        self.iov_bytes = iov_bytes

    def write(self, fd, data):
        """In pieces of the iov's size. Returns the bytes that the last request did not move, 0 on success."""
        for at in range(0, len(data), self.iov_bytes):
            piece = data[at : at + self.iov_bytes]
            self.write_shm.buf[: len(piece)] = piece
            self.write_ring.prepare(self.write_iov[: len(piece)], False, fd, at)
            self.write_ring.submit()
            done = self.write_ring.wait(min_results=1)[0]
            if done.result != len(piece):
                return done.result - len(piece)
        return 0

    def read(self, fd, offset, size):
        """Up to size bytes; fewer if a request was short or failed."""
        got = bytearray()
        while len(got) < size:
            length = min(self.iov_bytes, size - len(got))
            self.read_ring.prepare(self.read_iov[:length], True, fd, offset + len(got))
            self.read_ring.submit()
            done = self.read_ring.wait(min_results=1)[0]
            if done.result > 0:
                got += self.read_shm.buf[: done.result]
            if done.result != length:
                break
        return bytes(got)

    def close(self):
        del self.read_ring, self.write_ring, self.read_iov, self.write_iov
        for shm in (self.read_shm, self.write_shm):
            shm.close()
            shm.unlink()


class Connector:
    """The files. Each thread that uses it gets its own client, including the one that made it."""

    def __init__(self, mount, base, iov_bytes):
        self.mount, self.base, self.iov_bytes = mount, base, iov_bytes
        self.clients = []
        self._of_thread = threading.local()
        self.client()

    def client(self):
        if not hasattr(self._of_thread, "client"):
            self._of_thread.client = Client(self.mount, self.iov_bytes)
            self.clients.append(self._of_thread.client)
        return self._of_thread.client

    def path(self, key, suffix=".data"):
        return os.path.join(self.base, key + suffix)

    def put(self, key, data, after_rename=lambda path: None):
        """The rename happens while the file is still open and registered."""
        temporary, final = self.path(key, ".tmp"), self.path(key)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            register_fd(fd)
            try:
                missing = self.client().write(fd, data)
                if missing:
                    os.unlink(temporary)
                    raise RuntimeError(f"{temporary}: {-missing} bytes were not written")
                os.rename(temporary, final)
                after_rename(final)
            finally:
                deregister_fd(fd)
        finally:
            os.close(fd)

    def get(self, key, header_bytes=0):
        """What the file holds after its header, or None without a file."""
        try:
            fd = os.open(self.path(key), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            register_fd(fd)
            try:
                if not header_bytes:
                    return self.client().read(fd, 0, os.fstat(fd).st_size)
                header = self.client().read(fd, 0, header_bytes)
                if len(header) < header_bytes:
                    return None
                payload_bytes = int.from_bytes(header[:4], "little")
                payload = self.client().read(fd, header_bytes, payload_bytes)
                return payload if len(payload) == payload_bytes else None
            finally:
                deregister_fd(fd)
        finally:
            os.close(fd)

    def close(self):
        while self.clients:
            self.clients.pop().close()
