# SPDX-License-Identifier: Apache-2.0
"""Engines run a process for each tensor-parallel rank, and such a process may die at any moment."""

import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing import resource_tracker

from engines import lmcache, pages
from engines.case import EngineCase, content

RANKS = 4
CLIENTS = 4
PAGE_BYTES = 64 << 10
FILE_BYTES = 64 << 20
PATIENCE_SECONDS = 300


def rank_file(base, rank):
    return os.path.join(base, f"hf3fs_vllm_data_file_{rank}")


def clients_of_rank(base, rank):
    return [pages.Client(rank_file(base, rank), FILE_BYTES, PAGE_BYTES) for _ in range(CLIENTS)]


def serve_rank(base, rank):
    """Writes pages and reads them again, through each of its clients. Fails if one is wrong."""
    clients = clients_of_rank(base, rank)
    numbers = range(pages.ENTRIES)
    for i, client in enumerate(clients):
        offsets = [(i * pages.ENTRIES + n) * PAGE_BYTES for n in numbers]
        assert all(client.write(offsets, [content(f"{rank}/{i}/{n}", PAGE_BYTES) for n in numbers]))
    for i in range(CLIENTS):
        offsets = [(i * pages.ENTRIES + n) * PAGE_BYTES for n in numbers]
        reader = clients[(i + 1) % CLIENTS]
        assert reader.read(offsets) == [content(f"{rank}/{i}/{n}", PAGE_BYTES) for n in numbers]
    for client in clients:
        client.close()


def write_for_ever(base, ready):
    clients = clients_of_rank(base, 0)
    while True:
        for client in clients:
            assert client.write([0, PAGE_BYTES], [content(0, PAGE_BYTES), content(1, PAGE_BYTES)]) == [True, True]
        ready.set()


def put_for_ever(mount, base, shared_names, ready):
    """LMCache's names in /dev/shm stay when it is killed: another process must remove them."""
    connector = lmcache.Connector(mount, base, 1 << 20)
    shared_names.send(connector.client().names)
    while True:
        connector.put("key", content(0, 100_000))
        ready.set()


class Ranks(EngineCase):
    def run_ranks(self, context):
        ranks = [context.Process(target=serve_rank, args=(self.base, rank)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(PATIENCE_SECONDS)
        self.assertEqual([process.exitcode for process in ranks], [0] * RANKS)

    def test_spawned(self):
        before = self.registrations()
        self.run_ranks(multiprocessing.get_context("spawn"))
        self.assertEqual(self.registrations() - before, set())

    def test_forked(self):
        """From a process that has clients itself and continues to use them."""
        own = clients_of_rank(self.base, "parent")
        before = self.registrations()
        self.run_ranks(multiprocessing.get_context("fork"))
        self.assertEqual(self.registrations(), before)
        self.assertEqual(own[0].write([0], [content(0, PAGE_BYTES)]), [True])
        self.assertEqual(own[1].read([0]), [content(0, PAGE_BYTES)])
        for client in own:
            client.close()

    def kill_when_ready(self, process, ready):
        """Kills it at work and waits until the daemon has dropped its registrations."""
        before = self.registrations()
        process.start()
        self.assertTrue(ready.wait(PATIENCE_SECONDS))
        gone = self.registrations() - before
        os.kill(process.pid, signal.SIGKILL)
        process.join(PATIENCE_SECONDS)
        self.assertEqual(process.exitcode, -signal.SIGKILL)
        self.wait_until(lambda: not self.registrations() & gone, "registrations of a killed process disappear")
        return gone

    def test_killed(self):
        for method in ("spawn", "fork"):
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                ready = context.Event()
                worker = context.Process(target=write_for_ever, args=(self.base, ready))
                gone = self.kill_when_ready(worker, ready)
                self.assertEqual(len(gone), 4 * CLIENTS)
        serve_rank(self.base, 0)  # the daemon is alive, and the next process can use the file

    def test_killed_with_names_in_shared_memory(self):
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        parent_end, child_end = context.Pipe()
        base = tempfile.mkdtemp(dir=self.mount)
        worker = context.Process(target=put_for_ever, args=(self.mount, base, child_end, ready))
        self.assertEqual(len(self.kill_when_ready(worker, ready)), 4)
        # The daemon removes what the killed process has left.
        left, end = {name.lstrip("/") for name in parent_end.recv()}, time.monotonic() + PATIENCE_SECONDS
        while left & set(os.listdir("/dev/shm")) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(left & set(os.listdir("/dev/shm")))
        for name in left:  # else multiprocessing would look for it at the end
            resource_tracker.unregister("/" + name, "shared_memory")
        connector = lmcache.Connector(self.mount, base, 1 << 20)
        self.assertEqual(connector.get("key"), content(0, 100_000))
        connector.close()
