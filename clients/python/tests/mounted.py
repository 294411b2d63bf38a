# SPDX-License-Identifier: Apache-2.0
"""Test cases with a daemon of their own."""

import os
import signal
import subprocess
import sys
import unittest
from multiprocessing.shared_memory import SharedMemory

import daemon
from hf3fs_fuse import io

PATIENCE_SECONDS = daemon.PATIENCE_SECONDS


def pattern(size, seed=1):
    return bytes((seed + i * 7 + i // 251) & 255 for i in range(size))


class MountedTestCase(unittest.TestCase):
    """self.daemon serves self.mount; what the helpers make is removed after the test."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemon.Daemon()
        cls.daemon.__enter__()
        cls.addClassCleanup(cls.daemon.__exit__, None, None, None)
        cls.mount = cls.daemon.mount

    def path(self, data=b"", name=None):
        path = os.path.join(self.mount, name or self.id())
        with open(path, "wb") as f:
            f.write(data)
        return path

    def opened(self, path, flags=os.O_RDWR):
        """A descriptor that is not registered."""
        fd = os.open(path, flags)
        self.addCleanup(os.close, fd)
        return fd

    def registered(self, data=b"", flags=os.O_RDWR):
        fd = self.opened(self.path(data), flags)
        io.register_fd(fd)
        self.addCleanup(io.deregister_fd, fd)
        return fd

    def shm(self, size):
        shm = SharedMemory(create=True, size=size)
        self.addCleanup(shm.close)
        self.addCleanup(shm.unlink)
        return shm

    def buffer(self, size, **options):
        """An iovec that is the only owner of its memory."""
        shm = SharedMemory(create=True, size=size)
        try:
            return io.make_iovec(shm, self.mount, **options)
        finally:
            shm.unlink()
            shm.close()

    def ring(self, entries=4, **options):
        ring = io.make_ioring(self.mount, entries, **options)
        self.addCleanup(ring.ior.destroy)
        return ring

    def links(self):
        """Names of the registrations, without the submit semaphores."""
        names = os.listdir(os.path.join(self.mount, "3fs-virt", "iovs"))
        return sorted(name for name in names if not name.startswith("submit-ios"))

    def script(self, text, *arguments, **options):
        """A Python process; the caller bounds communicate()."""
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", text, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Whoever runs the tests may ignore Ctrl-C, as the shell does for `make test &`.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        self.addCleanup(_end, process)
        return process

    def run_script(self, text, *arguments):
        """What the process printed; it must end by itself, with status 0 and nothing on stderr."""
        process = self.script(text, *arguments)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, err), (0, ""), out)
        return out


def _end(process):
    if process.poll() is None:
        process.kill()
    process.wait(PATIENCE_SECONDS)
    process.stdout.close()
    process.stderr.close()
