# SPDX-License-Identifier: Apache-2.0
"""Functions on files and paths."""

import errno
import os
import tempfile
import unittest

import hf3fs_fuse.fuse
import hf3fs_py_usrbio
from hf3fs_fuse import io

from mounted import PATIENCE_SECONDS, MountedTestCase, pattern


class TestNames(unittest.TestCase):
    def test_reexports(self):
        for name in ("register_fd", "deregister_fd", "force_fsync", "extract_mount_point", "hardlink", "punch_hole"):
            self.assertIs(getattr(io, name), getattr(hf3fs_py_usrbio, name))
        self.assertIs(io.h3fio, hf3fs_py_usrbio)
        self.assertEqual([(p.name, p.value) for p in io.IorPriority], [("HIGH", -1), ("NORMAL", 0), ("LOW", 1)])

    def test_get_mount_point(self):
        with tempfile.TemporaryDirectory() as directory:
            link = os.path.join(directory, "link")
            os.symlink("/hf3fs/cluster/a/b", link)
            for path, mount in (
                ("/hf3fs/cluster/a/b", "/hf3fs/cluster"),
                ("/hf3fs/cluster", "/hf3fs/cluster"),
                ("/hf3fs", "/hf3fs"),
                ("/", "/"),
                (link, "/hf3fs/cluster"),
            ):
                self.assertEqual(hf3fs_fuse.fuse.get_mount_point(path), mount)


class TestOffMount(unittest.TestCase):
    def test_extract_mount_point(self):
        self.assertIsNone(io.extract_mount_point("/dev/shm"))
        with self.assertRaises(RuntimeError) as caught:
            io.extract_mount_point("/nowhere/at/all")
        self.assertIsInstance(caught.exception, FileNotFoundError)
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENOENT, "/nowhere/at/all"))
        self.assertIn("/nowhere/at/all", str(caught.exception))
        with self.assertRaises(OSError) as caught:
            io.extract_mount_point("/" + "a/" * 2100)
        self.assertEqual(caught.exception.errno, errno.ENAMETOOLONG)
        with self.assertRaises(ValueError):
            io.extract_mount_point("/a\0b")
        for path in (None, 3):
            with self.assertRaises(TypeError):
                io.extract_mount_point(path)

    def test_descriptors(self):
        with tempfile.TemporaryFile() as f:
            for call, number in (
                (lambda: io.register_fd(f.fileno()), errno.EBADF),
                (lambda: io.register_fd(-1), errno.EBADF),
                (lambda: io.register_fd(10**6), errno.EBADF),
                (lambda: io.force_fsync(f.fileno()), errno.ENOTTY),
                (lambda: io.force_fsync(-1), errno.EBADF),
                (lambda: io.force_fsync(10**6), errno.EBADF),
                (lambda: io.punch_hole(f.fileno(), [0], [4096]), errno.ENOTTY),
            ):
                with self.assertRaises(OSError) as caught:
                    call()
                self.assertEqual(caught.exception.errno, number)
            io.deregister_fd(f.fileno())
            for number in (-1, 10**6, 2**31, 2**100, -(2**100)):
                io.deregister_fd(number)
            for call in (io.register_fd, io.deregister_fd, io.force_fsync):
                with self.assertRaises(TypeError):
                    call("3")
            with self.assertRaises(ValueError):
                io.register_fd(2**32 + f.fileno())


class TestOnMount(MountedTestCase):
    def test_extract_mount_point(self):
        path = self.path()
        for inside in (path, self.mount, self.mount + "/", os.path.join(self.mount, "3fs-virt"), path.encode()):
            self.assertEqual(io.extract_mount_point(inside), self.mount)

    def test_register_fd(self):
        fd = self.opened(self.path(b"x"))
        self.assertIsNone(io.register_fd(fd))
        with self.assertRaisesRegex(OSError, "already registered") as caught:
            io.register_fd(fd)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.assertIsNone(io.deregister_fd(fd))
        io.deregister_fd(fd)
        io.register_fd(fd, flags=0)
        io.deregister_fd(fd)

    def test_force_fsync(self):
        fd = self.registered()
        iov, ring = self.buffer(4096), self.ring(for_read=False)
        ring.prepare(iov, False, fd, 0)
        ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual(io.force_fsync(fd), 0)
        self.assertEqual(os.fstat(fd).st_size, 4096)

    def test_hardlink(self):
        path = self.path(b"shared")
        self.assertIsNone(io.hardlink(path, path + ".2"))
        self.assertTrue(os.path.samefile(path, path + ".2"))
        with self.assertRaises(FileExistsError) as caught:
            io.hardlink(path, path + ".2")
        self.assertEqual((caught.exception.filename, caught.exception.filename2), (path, path + ".2"))
        with self.assertRaises(FileNotFoundError):
            io.hardlink(path + ".3", path + ".4")

    def test_punch_hole(self):
        path = self.path(b"x" * (3 << 20))
        chunk = os.stat(path).st_blksize
        self.assertIsNone(io.punch_hole(path, [0], [chunk]))
        fd = self.opened(path)
        self.assertEqual((os.pread(fd, 4, 0), os.pread(fd, 4, chunk)), (bytes(4), b"xxxx"))
        io.punch_hole(fd, [chunk], [2 * chunk], 0)
        self.assertEqual(os.pread(fd, 4, chunk), bytes(4))
        io.punch_hole(fd=fd, start=[], end=[])
        for arguments, error in (
            ((fd, [1], [chunk]), OSError),
            ((path + ".gone", [0], [chunk]), FileNotFoundError),
            ((fd, [0], []), RuntimeError),
            ((fd, [0] * 1001, [chunk] * 1001), RuntimeError),
            ((fd, [-chunk], [chunk]), ValueError),
            ((fd, ["0"], [chunk]), TypeError),
            ((fd, [0] * 8, bytes(64)), RuntimeError),  # 64 numbers, not eight
            ((), TypeError),
            ((path,), TypeError),
            ((path, [0]), TypeError),
        ):
            with self.assertRaises(error):
                io.punch_hole(*arguments)


def scratches():
    """What read_file makes while it runs. Other tests may run at the same time."""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith(f"hf3fs-read-{os.getpid()}-"))


class TestReadFile(MountedTestCase):
    def test_whole(self):
        data = pattern(3 << 20)
        path = self.path(data)
        io.read_file(path)  # the library opens 3fs-virt/iovs once and keeps it open
        descriptors, shm, links = os.listdir("/proc/self/fd"), scratches(), self.links()
        self.assertEqual(io.read_file(path), data)
        self.assertEqual(io.read_file(path, self.mount, 1 << 20, 5, io.IorPriority.HIGH), data[5:])
        self.assertEqual(io.read_file(path, block_size=1000, off=len(data) - 2500), data[-2500:])
        self.assertEqual(io.read_file(path, off=len(data)), b"")
        self.assertEqual(io.read_file(self.path(b"", "empty")), b"")
        self.assertEqual(self.links(), links)
        self.assertEqual(len(os.listdir("/proc/self/fd")), len(descriptors))
        self.assertEqual(scratches(), shm)

    def test_callback(self):
        data = pattern(1000)
        path = self.path(data)
        seen = []

        def run(answers, **options):
            seen.clear()
            answers = iter(answers)

            def cb(view, offset):
                self.assertIsInstance(view, memoryview)
                seen.append((bytes(view), offset))
                return next(answers)

            self.assertIsNone(io.read_file(path, block_size=400, cb=cb, **options))
            return [(offset, len(part)) for part, offset in seen]

        self.assertEqual(run([None] * 3), [(0, 400), (400, 400), (800, 200)])
        self.assertEqual(b"".join(part for part, _ in seen), data)
        self.assertEqual(run([None, True]), [(0, 400), (400, 400)])
        self.assertEqual(run(["enough"]), [(0, 400)])
        self.assertEqual(run([900, 0, 2000], off=100), [(100, 400), (900, 100), (0, 400)])

    def test_callback_that_raises(self):
        path = self.path(b"x" * 100)
        shm, links = scratches(), self.links()

        def cb(view, offset):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            io.read_file(path, cb=cb)
        self.assertEqual((scratches(), self.links()), (shm, links))

    def test_errors(self):
        missing = os.path.join(self.mount, "missing")
        with self.assertRaises(FileNotFoundError) as caught:
            io.read_file(missing)
        self.assertEqual((type(caught.exception), caught.exception.filename), (FileNotFoundError, missing))
        with self.assertRaises(OSError) as caught:
            io.read_file(self.path(b"x"), off=2**63)
        self.assertEqual(caught.exception.errno, errno.EFBIG)
        self.assertTrue(caught.exception.filename.endswith("test_errors"))
        with tempfile.NamedTemporaryFile() as elsewhere:
            with self.assertRaisesRegex(OSError, "not on a 3FS mount"):
                io.read_file(elsewhere.name)
        with self.assertRaises(ValueError):
            io.read_file(self.path(b"x"), block_size=0)


if __name__ == "__main__":
    unittest.main()
