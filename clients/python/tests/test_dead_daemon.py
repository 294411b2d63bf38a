# SPDX-License-Identifier: Apache-2.0
"""A daemon that is gone: nothing crashes or hangs, and the error says what is wrong."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

from hf3fs_fuse import io

from daemon import not_tested
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
                self.assertIn(error.errno, (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO))

    def refused(self, call, *arguments):
        began = time.monotonic()
        with self.assertRaises(OSError) as caught:
            call(*arguments)
        self.assertLess(time.monotonic() - began, PATIENCE_SECONDS)
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

    def noticed(self, call):
        """A client that polls gets ENOTCONN within seconds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                self.assertEqual(call(), [])
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOTCONN)
                return self.assertIn(self.mount, str(error))
        self.fail("the dead daemon was not noticed")

    def prepare_when_full(self):
        try:
            self.live.prepare(self.iov[0:1], True, self.fd, 0)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
        return []

    def test_died_while_the_ring_was_made(self):
        """The ring exists, but no daemon serves it."""
        with unittest.mock.patch("hf3fs_py_usrbio._watch.daemon_of", lambda mount: None):
            self.refused(io.make_ioring, self.mount, 4)

    def test_killed_and_back(self):
        shm = self.shm(4096)
        kept = self.shm(4096)
        kept_iov, unnamed, renewed = io.make_iovec(kept, self.mount), self.buffer(4096), self.ring()
        self.assertTrue(renewed.alive())
        self.daemon.kill()
        self.assertFalse(renewed.alive())
        self.refused(renewed.renew)
        self.refused(kept_iov.renew)
        # A ring of a dead daemon never completes a request.
        self.live.prepare(self.iov[0:100], True, self.fd, 0)
        self.live.submit()
        self.noticed(lambda: self.live.wait(min_results=1, timeout=0.05))
        self.noticed(lambda: self.live.wait(timeout=0))
        self.noticed(self.prepare_when_full)
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
        self.assertFalse(renewed.alive())
        renewed.renew()
        kept_iov.renew()
        self.assertTrue(renewed.alive())
        renewed.prepare(kept_iov[0:100], True, fd, 0)
        [done] = renewed.submit().wait(min_results=1)
        self.assertEqual((done.result, bytes(kept.buf[:100])), (100, b"x" * 100))
        # Without a name there is nothing that could be registered.
        with self.assertRaisesRegex(OSError, "no longer has a name"):
            unnamed.renew()


class TestStoppedDaemon(MountedTestCase):
    """A daemon that was stopped answers nothing; the call of the kernel that waits for it cannot be ended."""

    def test_del_and_exit_end(self):
        text = """
import sys
from multiprocessing.shared_memory import SharedMemory
from hf3fs_fuse import io
shm = SharedMemory(create=True, size=4096)
buffers = [io.make_iovec(shm, sys.argv[1]) for _ in range(2)]
rings = [io.make_ioring(sys.argv[1], 4) for _ in range(2)]
shm.unlink()
shm.close()
print("ready", flush=True)
sys.stdin.readline()
del buffers[0], rings[0]
for _ in range(2):
    try:
        io.make_ioring(sys.argv[1], 4)
    except OSError as error:
        print(error)
"""
        # Of the 30 seconds a fiftieth.
        env = {**os.environ, "HF3FS_USRBIO_ANSWER_MS": "600"}
        process = self.script(text, self.mount, stdin=subprocess.PIPE, env=env)
        self.assertEqual(process.stdout.readline(), "ready\n")
        with self.daemon.stalled():
            out, err = process.communicate("\n", timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, err), (0, ""))
        self.assertEqual(out.count("the daemon does not answer"), 2, out)

    def test_a_signal_handler_ends_the_wait(self):
        text = """
import signal
import sys
from hf3fs_fuse import io
ring = io.make_ioring(sys.argv[1], 4)
handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
print("ready", flush=True)
sys.stdin.readline()
try:
    io.make_ioring(sys.argv[1], 4)
except InterruptedError as error:
    print(error)
del ring
print(len(handled) > 0)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
"""
        # Only the signal ends it.
        env = {**os.environ, "HF3FS_USRBIO_ANSWER_MS": "3600000"}
        process = self.script(text, self.mount, stdin=subprocess.PIPE, env=env)
        self.assertEqual(process.stdout.readline(), "ready\n")
        with self.daemon.stalled():
            end = time.monotonic() + PATIENCE_SECONDS
            process.stdin.write("\n")
            process.stdin.flush()
            while process.poll() is None and time.monotonic() < end:
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.1)
            self.assertIsNotNone(process.poll(), "it still waits")
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((err, process.returncode), ("", 0))
        self.assertRegex(out, "a signal ended the wait for the daemon.*\nTrue\n")


class TestFullSharedMemory(MountedTestCase):
    def test_a_ring_does_not_fit(self):
        text = """
import sys
from hf3fs_fuse import io
try:
    io.make_ioring(sys.argv[1], 4096)
except OSError as error:
    print(error)
"""
        small = ["unshare", "-m", "sh", "-ec", 'mount -t tmpfs -o size=64k none /dev/shm; exec "$0" "$@"']
        command = [*small, sys.executable, "-c", text, self.mount]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        if done.returncode != 0:
            not_tested(f"no mount namespace: {done.stderr.strip()}")
        self.assertIn("df /dev/shm", done.stdout)


if __name__ == "__main__":
    unittest.main()
