# SPDX-License-Identifier: Apache-2.0
"""vLLM's HF3FSKVConnector: sixteen clients with eight entries each, on the one file of their rank."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

from engines.case import EngineCase, content
from engines.pages import ENTRIES, Client

CLIENTS = 16
PAGE_BYTES = 64 << 10
FILE_BYTES = 1 << 30
PATIENCE_SECONDS = 300


class VLLM(EngineCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.base, "hf3fs_vllm_data_file_0")
        self.clients = [Client(self.path, FILE_BYTES, PAGE_BYTES) for _ in range(CLIENTS)]
        self.addCleanup(self.close)

    def close(self):
        while self.clients:
            self.clients.pop().close()

    def in_batches(self, pool, pages, work):
        """work(client, page numbers) for eight pages at a time, the clients in turns."""
        batches = [pages[at : at + ENTRIES] for at in range(0, len(pages), ENTRIES)]
        running = [pool.submit(work, self.clients[i % CLIENTS], batch) for i, batch in enumerate(batches)]
        return [answer for done in running for answer in done.result(PATIENCE_SECONDS)]

    def test_random_pages_through_all_clients(self):
        pages = random.Random(1).sample(range(FILE_BYTES // PAGE_BYTES), 40 * ENTRIES - 3)

        def write(client, numbers):
            return client.write([n * PAGE_BYTES for n in numbers], [content(n, PAGE_BYTES) for n in numbers])

        def read(client, numbers):
            return client.read([n * PAGE_BYTES for n in numbers])

        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in range(2):  # each page is written over once
                written = self.in_batches(pool, pages, write)
                self.assertEqual(written, [True] * len(pages))
            random.Random(2).shuffle(pages)
            found = self.in_batches(pool, pages, read)
        wrong = [n for n, page in zip(pages, found) if page != content(n, PAGE_BYTES)]
        self.assertEqual(wrong, [])
        self.assertEqual(os.stat(self.path).st_size, FILE_BYTES)

    def test_reading_and_writing_at_once(self):
        """Saves and loads run on separate threads, through the same clients."""
        old = list(range(ENTRIES * CLIENTS))
        new = [n + len(old) for n in old]

        def write(client, numbers):
            return client.write([n * PAGE_BYTES for n in numbers], [content(n, PAGE_BYTES) for n in numbers])

        def read_is_right(client, numbers):
            pages = client.read([n * PAGE_BYTES for n in numbers])
            return [page == content(n, PAGE_BYTES) for n, page in zip(numbers, pages)]

        with ThreadPoolExecutor(CLIENTS) as pool, ThreadPoolExecutor(CLIENTS) as savers:
            self.assertTrue(all(self.in_batches(pool, old, write)))
            saving = [savers.submit(write, c, new[i * ENTRIES : (i + 1) * ENTRIES]) for i, c in enumerate(self.clients)]
            self.assertEqual(self.in_batches(pool, old, read_is_right), [True] * len(old))
            for done in saving:
                self.assertTrue(all(done.result(PATIENCE_SECONDS)))
            self.assertEqual(self.in_batches(pool, new, read_is_right), [True] * len(new))

    def test_a_page_that_nobody_wrote(self):
        """The rank's file is one large hole at first, and a hole within it reads as a page of zeros."""
        self.assertEqual(self.clients[0].read([5 * PAGE_BYTES]), [bytes(PAGE_BYTES)])
        self.assertEqual(self.clients[0].read([FILE_BYTES - PAGE_BYTES]), [bytes(PAGE_BYTES)])

    def test_a_page_beyond_the_file_is_a_miss(self):
        self.assertEqual(self.clients[0].read([FILE_BYTES]), [None])

    def test_opening_again_keeps_the_pages(self):
        """The sixteen equal ftruncates of the next start lose nothing."""
        self.assertEqual(self.clients[3].write([0], [content(0, PAGE_BYTES)]), [True])
        self.close()
        self.clients = [Client(self.path, FILE_BYTES, PAGE_BYTES) for _ in range(CLIENTS)]
        self.assertEqual(self.clients[9].read([0]), [content(0, PAGE_BYTES)])

    def test_nothing_is_left_behind(self):
        mine = self.registrations()
        self.assertEqual(len(mine), 4 * CLIENTS)
        self.close()
        self.assertEqual(self.registrations() & mine, set())

    def test_shared_memory_has_no_names(self):
        """Unlinked right after make_iovec: a crash leaves nothing in /dev/shm."""
        targets = [os.readlink(os.path.join(self.mount, "3fs-virt", "iovs", name)) for name in self.registrations()]
        self.assertEqual([target for target in targets if os.path.exists(target)], [])
