# SPDX-License-Identifier: Apache-2.0
"""A daemon that is gone: nothing crashes or hangs, and the error says what is wrong."""

import errno
import os
import threading
import time
import unittest
import unittest.mock

from hf3fs_fuse import io

from mounted import PATIENCE_SECONDS, MountedTestCase


class TestDeadDaemon(MountedTestCase):
    def setUp(self):
        self.path_of_file = self.path(b"x" * 100)
        self.fd = os.open(self.path_of_file, os.O_RDWR)
        io.register_fd(self.fd)
        self.unregistered = os.open(self.path_of_file, os.O_RDWR)
        self.addCleanup(self.close)
        self.iov, self.live = self.buffer(4096), self.ring()

    def close(self):
        io.deregister_fd(self.fd)
        for fd in (self.fd, self.unregistered):
            try:
                os.close(fd)
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

    def refused_wait(self):
        """In a thread, so that an endless wait fails this test and does not block all others."""
        ended = []

        def wait():
            try:
                ended.append(self.live.wait(min_results=1))
            except OSError as error:
                ended.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        self.assertEqual([getattr(end, "errno", end) for end in ended], [errno.ENOTCONN])
        self.assertIn(self.mount, str(ended[0]))

    def test_died_while_the_ring_was_made(self):
        """The ring exists, but no daemon serves it."""
        with unittest.mock.patch("hf3fs_py_usrbio._watch.daemon_of", lambda mount: None):
            self.refused(io.make_ioring, self.mount, 4)

    def test_killed_and_back(self):
        shm = self.shm(4096)
        self.daemon.kill()
        # A ring of a dead daemon never completes a request.
        self.live.prepare(self.iov[0:100], True, self.fd, 0)
        began = time.monotonic()
        self.assertEqual(self.live.submit().wait(min_results=1, timeout=0.3), [])
        self.assertLess(time.monotonic() - began, 5)
        self.refused_wait()
        self.refused(io.make_ioring, self.mount, 4)
        self.refused(io.make_iovec, shm, self.mount)
        self.refused(io.extract_mount_point, self.path_of_file)
        unregistered, path = self.unregistered, self.path_of_file
        for call, arguments in (
            (io.register_fd, (unregistered,)),
            (io.force_fsync, (unregistered,)),
            (io.punch_hole, (unregistered, [0], [4096])),
            (io.punch_hole, (path, [0], [4096])),
            (io.hardlink, (path, path + ".2")),
            (io.read_file, (path,)),
            (io.read_file, (path, self.mount)),
        ):
            with self.subTest(call.__name__):
                self.refused(call, *arguments)
        self.daemon.restart()
        self.refused_wait()
        del self.iov
        self.live.ior.destroy()
        # As the error says: open files, iovecs and rings again.
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
