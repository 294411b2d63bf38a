# SPDX-License-Identifier: Apache-2.0
"""A daemon that has gone: nothing crashes, nothing hangs, and what is wrong is said."""

import errno
import os
import time
import unittest

from hf3fs_fuse import io

from mounted import PATIENCE_SECONDS, MountedTestCase


class TestDeadDaemon(MountedTestCase):
    def setUp(self):
        self.path_of_file = self.path(b"x" * 100)
        self.fd = os.open(self.path_of_file, os.O_RDWR)
        io.register_fd(self.fd)
        self.addCleanup(self.close)
        self.iov, self.live = self.buffer(4096), self.ring()

    def close(self):
        io.deregister_fd(self.fd)
        try:
            os.close(self.fd)
        except OSError as error:
            self.assertEqual(error.errno, errno.ENOTCONN)

    def refused(self, call, *arguments):
        began = time.monotonic()
        with self.assertRaises(OSError) as caught:
            call(*arguments)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(caught.exception.errno, errno.ENOTCONN, caught.exception)
        self.assertIn("daemon", str(caught.exception))
        self.assertIn(self.mount, str(caught.exception))

    def test_killed_and_back(self):
        shm = self.shm(4096)
        self.daemon.kill()
        # Rings of a dead daemon never complete anything.
        self.live.prepare(self.iov[0:100], True, self.fd, 0)
        began = time.monotonic()
        self.assertEqual(self.live.submit().wait(min_results=1, timeout=0.3), [])
        self.assertLess(time.monotonic() - began, 5)
        self.refused(lambda: self.live.wait(min_results=1))
        self.refused(io.make_ioring, self.mount, 4)
        self.refused(io.make_iovec, shm, self.mount)
        self.refused(io.extract_mount_point, self.path_of_file)
        self.daemon.restart()
        self.refused(lambda: self.live.wait(min_results=1))
        del self.iov
        self.live.ior.destroy()
        # As the cure says: open files, iovecs and rings again.
        fd = os.open(self.path_of_file, os.O_RDWR)
        self.addCleanup(os.close, fd)
        io.register_fd(fd)
        self.addCleanup(io.deregister_fd, fd)
        iov, ring = self.buffer(4096), self.ring()
        ring.prepare(iov[0:100], True, fd, 0)
        [done] = ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual(done.result, 100)


if __name__ == "__main__":
    unittest.main()
