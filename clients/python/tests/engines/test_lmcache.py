# SPDX-License-Identifier: Apache-2.0
"""LMCache, remote connector."""

import multiprocessing
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from engines import lmcache
from engines.case import EngineCase, content

THREADS = 4
IOV_BYTES = 1 << 20
HEADER = struct.Struct("<7i")  # payload length, memory format, dtype, four numbers of the shape
PATIENCE_SECONDS = 300


def key_of(number):
    return f"meta-SEP-llama@1@0@{number:x}@half"


def with_header(payload):
    return HEADER.pack(len(payload), 1, 2, 2, 32, 256, 128) + payload


class LMCache(EngineCase):
    def connector(self, iov_bytes=IOV_BYTES):
        connector = lmcache.Connector(self.mount, self.base, iov_bytes)
        self.addCleanup(connector.close)
        return connector

    def test_threads_put_and_get_chunks(self):
        connector = self.connector()
        chunks = {key_of(i): content(i, 200_000 + 4096 * i + i) for i in range(40)}
        everyone = threading.Barrier(THREADS)
        with ThreadPoolExecutor(THREADS, initializer=connector.client) as pool:
            # Each of these occupies a thread until the pool has started all of them.
            for done in [pool.submit(everyone.wait, PATIENCE_SECONDS) for _ in range(THREADS)]:
                done.result(PATIENCE_SECONDS)
            for done in [pool.submit(connector.put, k, with_header(v)) for k, v in chunks.items()]:
                done.result(PATIENCE_SECONDS)
            found = {k: pool.submit(connector.get, k, HEADER.size) for k in chunks}
            for key, done in found.items():
                self.assertEqual(done.result(PATIENCE_SECONDS), chunks[key], key)
        self.assertEqual(len(connector.clients), THREADS + 1)
        self.assertEqual(len(self.registrations()), 4 * (THREADS + 1))

    def test_closing_takes_all_registrations_away(self):
        before = self.registrations()
        connector = self.connector()
        connector.put(key_of(1), b"something")
        self.assertEqual(len(self.registrations() - before), 4)
        connector.close()
        self.assertEqual(self.registrations() - before, set())

    def test_names_in_shared_memory(self):
        connector = self.connector()
        owner = f"3FSClient_{os.getpid()}_{threading.get_native_id()}"
        self.assertEqual(connector.client().names, [f"{owner}_rd", f"{owner}_wt"])
        links = {os.readlink(iov.link) for iov in (connector.client().read_iov, connector.client().write_iov)}
        self.assertEqual(links, {f"/dev/shm/{owner}_rd", f"/dev/shm/{owner}_wt"})

    def test_a_reader_after_the_rename_sees_the_full_length(self):
        """While the writer still has its file open and registered."""
        connector = self.connector()
        for number, size in enumerate((1, 4095, 4097, IOV_BYTES, 3 * IOV_BYTES + 5)):
            data = content(number, size)
            seen = []

            def read_at_once(path):
                seen.append(os.stat(path).st_size)
                with open(path, "rb") as file:
                    seen.append(os.fstat(file.fileno()).st_size)
                seen.append(connector.get(key_of(number)))

            connector.put(key_of(number), data, after_rename=read_at_once)
            self.assertEqual(seen[:2], [size, size])
            self.assertEqual(seen[2], data)

    def test_a_shorter_chunk_replaces_a_longer_one(self):
        connector = self.connector()
        connector.put(key_of(1), content(1, 300_000))
        connector.put(key_of(1), content(2, 1000))
        self.assertEqual(connector.get(key_of(1)), content(2, 1000))
        self.assertEqual(os.listdir(self.base), [key_of(1) + ".data"])

    def test_a_missing_chunk_is_a_miss(self):
        connector = self.connector()
        self.assertIsNone(connector.get(key_of(404)))

    def test_a_cut_chunk_is_a_failed_get(self):
        connector = self.connector()
        connector.put(key_of(1), with_header(content(1, 5000)))
        for size in (HEADER.size + 4999, HEADER.size, HEADER.size - 1, 0):
            os.truncate(connector.path(key_of(1)), size)
            self.assertIsNone(connector.get(key_of(1), HEADER.size), f"of {size} bytes")

    def test_a_chunk_removed_while_read_is_served(self):
        """An evictor may remove any chunk at any time."""
        connector = self.connector()
        connector.put(key_of(1), content(1, 50_000))
        fd = os.open(connector.path(key_of(1)), os.O_RDONLY)
        lmcache.register_fd(fd)
        os.unlink(connector.path(key_of(1)))
        self.assertEqual(connector.client().read(fd, 0, 50_000), content(1, 50_000))
        lmcache.deregister_fd(fd)
        os.close(fd)
        self.assertIsNone(connector.get(key_of(1)))

    def test_the_default_size(self):
        """200 MiB in each direction, for one client; a chunk of 32 MiB as of a large model."""
        connector = self.connector(lmcache.IOV_BYTES)
        data = content(1, 32 << 20)
        connector.put(key_of(1), with_header(data))
        self.assertTrue(connector.get(key_of(1), HEADER.size) == data)  # no diff of 32 MiB on failure

    def test_several_processes_share_the_files(self):
        processes = 3
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(processes) as pool:
            of_rank = [(self.mount, self.base, rank) for rank in range(processes)]
            pool.starmap_async(put_own_chunks, of_rank, chunksize=1).get(PATIENCE_SECONDS)
            wrong = pool.starmap_async(
                wrong_chunks, [(self.mount, self.base, processes)] * processes, chunksize=1
            ).get(PATIENCE_SECONDS)
        self.assertEqual(wrong, [[]] * processes)


CHUNKS_OF_RANK = 10


def chunk_of(rank, number):
    return f"meta-SEP-llama@3@{rank}@{number:x}@half", content(f"{rank}/{number}", 100_000 + rank)


def put_own_chunks(mount, base, rank):
    connector = lmcache.Connector(mount, base, IOV_BYTES)
    for number in range(CHUNKS_OF_RANK):
        key, data = chunk_of(rank, number)
        connector.put(key, with_header(data))
    connector.close()


def wrong_chunks(mount, base, ranks):
    """The chunks of all writers that do not hold what was written."""
    connector = lmcache.Connector(mount, base, IOV_BYTES)
    chunks = [chunk_of(rank, number) for rank in range(ranks) for number in range(CHUNKS_OF_RANK)]
    wrong = [key for key, data in chunks if connector.get(key, HEADER.size) != data]
    connector.close()
    return wrong
