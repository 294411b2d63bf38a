# SPDX-License-Identifier: Apache-2.0
"""The test case that all engines share: its own mount, recognisable content, and a time limit."""

import faulthandler
import os
import random
import sys
import tempfile
import threading
import time
import unittest

import daemon

TEST_LIMIT_SECONDS = 900
POLL_SECONDS = 0.02


class EngineCase(unittest.TestCase):
    """One daemon for all tests of a class, one directory on its mount for each test."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemon.Daemon()
        cls.daemon.__enter__()
        cls.addClassCleanup(cls.daemon.__exit__, None, None, None)
        cls.mount = cls.daemon.mount

    def setUp(self):
        self.base = tempfile.mkdtemp(dir=self.mount)
        # Engines wait without a deadline, in threads that nothing can interrupt. If one of them
        # waits in vain, the whole run must end and say where.
        limit = threading.Timer(TEST_LIMIT_SECONDS, self._give_up)
        limit.daemon = True
        limit.start()
        self.addCleanup(limit.cancel)

    def _give_up(self):
        sys.stderr.write(f"\n{self.id()} took more than {TEST_LIMIT_SECONDS} s:\n")
        faulthandler.dump_traceback()
        sys.stderr.flush()
        try:
            self.daemon.__exit__(None, None, None)
        finally:
            os._exit(1)

    def registrations(self):
        """The names of all iovs and rings that this user has registered."""
        names = os.listdir(os.path.join(self.mount, "3fs-virt", "iovs"))
        return {name for name in names if not name.startswith("submit-ios")}

    def wait_until(self, condition, what, seconds=120):
        """Polls, because the daemon does not announce the event."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what}: not within {seconds} s")
            time.sleep(POLL_SECONDS)


def content(seed, size):
    """Bytes that are unique to this seed and the same in every process."""
    return random.Random(seed).randbytes(size)
