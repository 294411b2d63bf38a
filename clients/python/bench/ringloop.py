# SPDX-License-Identifier: Apache-2.0
"""What clients/c/tests/usrbio_bench.c does, request by request, through the Python package.

    ringloop.py MOUNT FILE SHM SIZE DEPTH OFFSETS

makes SHM and removes it in the end. Arguments, commands and answers are described there, but for one:

    cost BATCHES -> PREPARE REAP SLICE

REAP is the wait() that finds everything complete and a look at each result; SLICE, which has no
counterpart in C, is iov[a:b], and in no other figure. Everywhere else slices are used again.
"""

import array
import itertools
import os
import signal
import statistics
import sys
import time
from multiprocessing import shared_memory

from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

PATIENCE_SECONDS = 30.0  # after this time without a completion the daemon counts as hung
BATCH_PAUSE_SECONDS = 0.002  # long enough for the daemon to complete a batch that no thread waits for


class RingLoop:
    def __init__(self, mount, iov, fd, size, depth, offsets):
        self.ring = make_ioring(mount, depth)
        self.iov, self.fd, self.size, self.depth = iov, fd, size, depth
        self.slices = self.slice()
        self.offsets = itertools.cycle(offsets)
        self.held = [0] * depth  # the last requested offset, by slot

    def slice(self):
        size = self.size
        return [self.iov[at : at + size] for at in range(0, size * self.depth, size)]

    def prepare(self, slices):
        """Takes (slice, slot) pairs."""
        prepare, fd, held, offsets = self.ring.prepare, self.fd, self.held, self.offsets
        for window, slot in slices:
            held[slot] = offset = next(offsets)
            prepare(window, True, fd, offset, slot)

    def wait_for(self, at_least):
        """At least this many completions, all good."""
        done = self.ring.wait(max_results=self.depth, min_results=at_least, timeout=PATIENCE_SECONDS)
        if len(done) < at_least:
            raise SystemExit("ringloop: the daemon hangs")
        for request in done:
            if request.result != self.size:
                raise SystemExit(f"ringloop: a request of {self.size} bytes: result {request.result}")
        return done

    def rate(self, seconds):
        """Half of the requests are collected at a time, so that the daemon can work on the other half."""
        requests, pending = 0, self.depth
        began = now = time.perf_counter()
        end = began + seconds
        self.prepare(zip(self.slices, range(self.depth)))
        self.ring.submit()
        while pending:
            done = self.wait_for((pending + 1) // 2)
            requests += len(done)
            now = time.perf_counter()
            if now >= end:
                pending -= len(done)
                continue
            self.prepare([(request, request.userdata) for request in done])
            self.ring.submit()
        return requests, now - began

    def cost(self, batches):
        prepares, reaps, cuts = [], [], []
        for _ in range(batches):
            began = time.perf_counter_ns()
            fresh = self.slice()
            cuts.append(time.perf_counter_ns() - began)
            pairs = list(zip(fresh, range(self.depth)))
            began = time.perf_counter_ns()
            self.prepare(pairs)
            prepares.append(time.perf_counter_ns() - began)
            self.ring.submit()
            # Only a wait could tell when all are complete, but the figure must not include waiting.
            time.sleep(BATCH_PAUSE_SECONDS)
            began = time.perf_counter_ns()
            self.wait_for(self.depth)
            reaps.append(time.perf_counter_ns() - began)
        return [statistics.median(times) / self.depth for times in (prepares, reaps, cuts)]


def serve(loop):
    commands = {"rate": (loop.rate, float), "cost": (loop.cost, int)}
    for line in sys.stdin:
        name, argument = line.split()
        run, kind = commands[name]
        print(*run(kind(argument)), *loop.held, flush=True)


def main(mount, path, name, size, depth, offset_file):
    # Ctrl-C goes to the benchmark, which then ends this process by closing its stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    size, depth = int(size), int(depth)
    offsets = array.array("Q")
    with open(offset_file, "rb") as file:
        offsets.frombytes(file.read())
    shm = shared_memory.SharedMemory(name=name, create=True, size=size * depth)
    try:
        shm.buf[:] = bytes(len(shm.buf))  # touch every page before anything is measured
        fd = os.open(path, os.O_RDONLY)
        register_fd(fd)
        iov = make_iovec(shm, mount)
        print("ready", flush=True)
        loop = RingLoop(mount, iov, fd, size, depth, offsets.tolist())
        serve(loop)
        deregister_fd(fd)
        os.close(fd)
        del loop, iov
        shm.close()
    finally:
        shm.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
