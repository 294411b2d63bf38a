# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache: like vLLM, but every wait has a deadline."""

import contextlib
import datetime
import os
import random
import time
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory

from engines.case import EngineCase, content
from engines.pages import ENTRIES, Client
from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

CLIENTS = 16
CLIENT_TIMEOUT_SECONDS = 120  # the engine has five, which a busy machine may take
SHORT_SECONDS = 0.3
SLACK_SECONDS = 100  # what a busy machine may add to a deadline
TOKEN_BYTES, PAGE_TOKENS = 2048, 64
PAGE_BYTES = TOKEN_BYTES * PAGE_TOKENS
FILE_BYTES = 1 << 40
PATIENCE_SECONDS = 300


def state_of(found):
    """The state of the pages, from the first on, as words that are shorter than a page."""
    words = {None: "missing"}
    return [words.get(page, "right" if page == content(n, PAGE_BYTES) else "wrong") for n, page in enumerate(found)]


class SGLang(EngineCase):
    def client(self, page_bytes=PAGE_BYTES):
        path = os.path.join(self.base, "hicache.0.bin")
        return Client(path, FILE_BYTES, page_bytes, wait_seconds=CLIENT_TIMEOUT_SECONDS)

    def write_and_read(self, page_bytes, pages):
        clients = [self.client(page_bytes) for _ in range(CLIENTS)]

        def write(client, batch):
            return client.write([n * page_bytes for n in batch], [content(n, page_bytes) for n in batch])

        def right(client, batch):
            found = client.read([n * page_bytes for n in batch])
            return [page == content(n, page_bytes) for n, page in zip(batch, found)]

        batches = [pages[at : at + ENTRIES] for at in range(0, len(pages), ENTRIES)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            for work in (write, right):
                running = [pool.submit(work, clients[i % CLIENTS], batch) for i, batch in enumerate(batches)]
                answers = [answer for done in running for answer in done.result(PATIENCE_SECONDS)]
                self.assertEqual(answers, [True] * len(pages))
        for client in clients:
            client.close()

    def test_a_backup_of_128_pages(self):
        """layer_first, in a file of the default size of 1 TiB."""
        self.write_and_read(PAGE_BYTES, random.Random(1).sample(range(FILE_BYTES // PAGE_BYTES), 128))

    def test_keys_and_values_in_pages_of_half_the_size(self):
        """page_first: K and V of one page have separate places."""
        self.write_and_read(PAGE_BYTES // 2, random.Random(2).sample(range(2 * FILE_BYTES // PAGE_BYTES), 128))

    def test_a_stalled_daemon_costs_the_deadline(self):
        """A late completion stays in the ring, and the next wait finds it."""
        client = self.client()
        self.assertEqual(client.write([0], [content(0, PAGE_BYTES)]), [True])
        client.wait_at_most(SHORT_SECONDS)
        with self.daemon.stalled():
            began = time.monotonic()
            self.assertEqual(client.read([0] * 3), [None] * 3)
            self.assertLess(time.monotonic() - began, SHORT_SECONDS + SLACK_SECONDS)
        client.wait_at_most(CLIENT_TIMEOUT_SECONDS)
        self.assertEqual(client.late(3, CLIENT_TIMEOUT_SECONDS), [PAGE_BYTES] * 3)
        self.assertEqual(client.read([0]), [content(0, PAGE_BYTES)])
        client.close()

    def test_a_full_ring_of_a_stalled_daemon(self):
        """A client that continues nevertheless gets an error as soon as the ring is full."""
        client = self.client()
        self.assertEqual(client.write([0], [content(0, PAGE_BYTES)]), [True])
        client.wait_at_most(SHORT_SECONDS)
        with self.daemon.stalled():
            self.assertEqual(client.read([0] * ENTRIES), [None] * ENTRIES)
            with self.assertRaises(BlockingIOError):  # EAGAIN
                client.read([0])
        self.assertEqual(client.late(ENTRIES, CLIENT_TIMEOUT_SECONDS), [PAGE_BYTES] * ENTRIES)
        client.close()

    def test_a_dead_daemon_costs_the_deadline(self):
        """No crash and no hang; the clients of the next daemon find what had been written."""
        client = self.client()
        pages = list(range(ENTRIES))
        offsets = [n * PAGE_BYTES for n in pages]
        self.assertEqual(client.write(offsets, [content(n, PAGE_BYTES) for n in pages]), [True] * ENTRIES)
        client.wait_at_most(SHORT_SECONDS)
        self.daemon.kill()
        for call in (lambda: client.read(offsets), lambda: client.write(offsets[:2], [b"", b""])):
            began = time.monotonic()
            self.assertFalse(any(call()))
            self.assertLess(time.monotonic() - began, SHORT_SECONDS + SLACK_SECONDS)
        with contextlib.suppress(OSError):  # whether a close asks the daemon depends on its data directory's file system
            client.close()
        self.daemon.restart()
        client = self.client()
        self.assertEqual(state_of(client.read(offsets)), ["right"] * ENTRIES)
        client.close()

    def test_direct_iovs(self):
        """Newer versions register pieces of their own host memory, which only look like a SharedMemory."""
        page, path = content(1, PAGE_BYTES), os.path.join(self.base, "direct.bin")
        with open(path, "wb") as f:
            f.write(page * 2)
        fd = os.open(path, os.O_RDWR)
        register_fd(fd)
        host = shared_memory.SharedMemory(create=True, size=4 * PAGE_BYTES)
        direct = make_iovec(types.SimpleNamespace(name=host.name, buf=host.buf), self.mount, PAGE_BYTES, -1)
        ring = make_ioring(self.mount, ENTRIES, for_read=True)
        ring.prepare(direct.iov.slice_by(host.buf[PAGE_BYTES : 2 * PAGE_BYTES]), True, fd, PAGE_BYTES)
        [done] = ring.submit().wait(min_results=1, timeout=datetime.timedelta(seconds=CLIENT_TIMEOUT_SECONDS))
        self.assertEqual((done.result, bytes(host.buf[PAGE_BYTES : 2 * PAGE_BYTES]) == page), (PAGE_BYTES, True))
        host.unlink()
        host.close()
        deregister_fd(fd)
        os.close(fd)
