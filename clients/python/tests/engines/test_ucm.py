# SPDX-License-Identifier: Apache-2.0
"""UCM's Ds3fs store: 32 workers with two rings each, of one entry and depth 1; a file for every shard."""

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory

from engines.case import EngineCase, content
from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

WORKERS = 32
SHARD_BYTES = 128 << 10
PATIENCE_SECONDS = 300


class Worker:
    def __init__(self, mount):
        self.shm = shared_memory.SharedMemory(create=True, size=SHARD_BYTES)
        self.iov = make_iovec(self.shm, mount)
        self.shm.unlink()
        self.rings = {
            for_read: make_ioring(mount, 1, for_read=for_read, io_depth=1, timeout=0, flags=0)
            for for_read in (True, False)
        }

    def transfer(self, path, for_read):
        """Open, register, one request, deregister, close. A short transfer is not an error here."""
        fd = os.open(path, os.O_RDONLY if for_read else os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            register_fd(fd)
            ring = self.rings[for_read]
            ring.prepare(self.iov[:SHARD_BYTES], for_read, fd, 0)
            ring.submit()
            (done,) = ring.wait(max_results=1, min_results=1)
            deregister_fd(fd)
            return done.result
        finally:
            os.close(fd)

    def close(self):
        del self.rings, self.iov
        self.shm.close()


class UCM(EngineCase):
    def setUp(self):
        super().setUp()
        self.workers = [Worker(self.mount) for _ in range(WORKERS)]
        self.idle = queue.SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        os.mkdir(os.path.join(self.base, ".temp"), 0o744)
        self.addCleanup(self.close)

    def close(self):
        for worker in self.workers:
            worker.close()

    def path(self, name):
        return os.path.join(self.base, name[:2], name)

    def dump(self, name):
        worker = self.idle.get(timeout=PATIENCE_SECONDS)
        try:
            worker.shm.buf[:] = content(name, SHARD_BYTES)
            temporary = os.path.join(self.base, ".temp", name)
            result = worker.transfer(temporary, False)
            os.makedirs(os.path.dirname(self.path(name)), 0o744, exist_ok=True)
            os.rename(temporary, self.path(name))
            return result
        finally:
            self.idle.put(worker)

    def load(self, name):
        worker = self.idle.get(timeout=PATIENCE_SECONDS)
        try:
            result = worker.transfer(self.path(name), True)
            return result, bytes(worker.shm.buf)
        finally:
            self.idle.put(worker)

    def test_shards_through_64_rings(self):
        self.assertEqual(len(self.registrations()), 3 * WORKERS)
        names = [f"{n * 2654435761 % (1 << 32):08x}" for n in range(8 * WORKERS)]
        with ThreadPoolExecutor(WORKERS) as pool:
            dumped = list(pool.map(self.dump, names, timeout=PATIENCE_SECONDS))
            self.assertEqual(dumped, [SHARD_BYTES] * len(names))
            for name, (result, data) in zip(names, pool.map(self.load, names, timeout=PATIENCE_SECONDS)):
                self.assertEqual(result, SHARD_BYTES)
                self.assertTrue(data == content(name, SHARD_BYTES), name)

    def test_a_shorter_shard(self):
        os.makedirs(os.path.dirname(self.path("abcd")))
        with open(self.path("abcd"), "wb") as file:
            file.write(content(1, 1000))
        result, data = self.load("abcd")
        self.assertEqual(result, 1000)
        self.assertEqual(data[:1000], content(1, 1000))
