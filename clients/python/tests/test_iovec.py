# SPDX-License-Identifier: Apache-2.0
"""Buffers and slices, without a mount."""

import copy
import ctypes
import gc
import mmap
import pickle
import sys
import unittest
import uuid
import weakref

from hf3fs_fuse import io
from hf3fs_py_usrbio import _iovec, iovec

MOUNT = "/mnt/3fs"


def made(base, **options):
    return iovec(base, str(uuid.uuid4()), MOUNT, **options)


class TestBuffer(unittest.TestCase):
    def test_is_one_dimension_of_writable_bytes(self):
        base = bytearray(range(100))
        view = memoryview(made(base))
        self.assertEqual((view.format, view.ndim, view.readonly, len(view)), ("B", 1, False, 100))
        view[3] = 77
        self.assertEqual((base[3], view[4]), (77, 4))

    def test_slices_share_the_memory_and_stay_rooted(self):
        base = bytearray(2000)
        iov = made(base)
        part = iov[512:1024][0:100]
        self.assertEqual((part.base_off, len(memoryview(part)), iov.base_off), (512, 100, 0))
        memoryview(part)[0] = 9
        self.assertEqual(base[512], 9)
        self.assertIsInstance(part, iovec)

    def test_slices_are_clamped(self):
        iov = made(bytearray(100))
        for where, offset, size in (
            (slice(None), 0, 100),
            (slice(-10, None), 90, 10),
            (slice(50, 1000), 50, 50),
            (slice(60, 40), 60, 0),
            (slice(0, 0), 0, 0),
            (slice(200, 300), 100, 0),
            (slice(1, 5, 1), 1, 4),
        ):
            part = iov[where]
            self.assertEqual((part.base_off, len(memoryview(part)), bytes(part)), (offset, size, bytes(size)), where)

    def test_only_slices_of_step_one(self):
        iov = made(bytearray(100))
        for step in (2, -1):
            with self.assertRaises(ValueError):
                iov[::step]
        for where in (0, "a", None):
            with self.assertRaises(TypeError):
                iov[where]

    def test_assignment(self):
        base = bytearray(100)
        iov = made(base)
        for value in (b"abcd", bytearray(b"efgh"), memoryview(b"ijkl"), (ctypes.c_int32 * 1)(7)):
            if isinstance(value, ctypes.Array):
                value = memoryview(value).cast("B") if memoryview(value).format == "i" else bytes(value)
            iov[10:14] = value
            self.assertEqual(base[10:14], bytes(value))
        iov[5:5] = b""
        io.iovec(iov, "/nowhere/link")[90:] = b"0123456789"
        self.assertEqual(base[90:], b"0123456789")
        for where, value, error in (
            (slice(0, 4), b"12345", ValueError),
            (slice(0, 8, 2), b"1234", ValueError),
            (slice(0, 4), "1234", TypeError),
            (0, b"1", TypeError),
        ):
            with self.assertRaises(error):
                iov[where] = value

    def test_slice_by(self):
        base = bytearray(100)
        iov = made(base)
        part = iov.slice_by(memoryview(base)[20:30])
        self.assertEqual((part.base_off, len(memoryview(part))), (20, 10))
        self.assertEqual(iov[10:50].slice_by(part).base_off, 20)
        for outside in (bytearray(10), memoryview(base)[0:30]):
            with self.assertRaises(IndexError):
                iov[20:40].slice_by(outside)

    def test_attributes_before_completion_are_read_only(self):
        part = made(bytearray(10))[0:5]
        self.assertEqual((part.result, part.userdata), (0, None))
        for name in ("result", "userdata", "base_off"):
            with self.assertRaises(AttributeError):
                setattr(part, name, 1)

    def test_any_size(self):
        iov = made(bytearray(4096))
        for size in range(3000):  # more than are remembered
            self.assertEqual(len(memoryview(iov[0:size])), size)
        gc.collect()
        self.assertLess(len(iovec.__subclasses__()), _iovec._class_for.cache_info().maxsize + 100)


class TestArguments(unittest.TestCase):
    def test_bad_ones(self):
        good = str(uuid.uuid4())
        base = bytearray(10)
        for arguments, error in (
            ((base, "x", MOUNT), ValueError),
            ((base, "{" + good + "}", MOUNT), ValueError),
            ((base, good.replace("-", ""), MOUNT), ValueError),
            ((base, None, MOUNT), TypeError),
            ((b"read only", good, MOUNT), TypeError),
            ((bytearray(), good, MOUNT), ValueError),
            ((memoryview(base)[::2], good, MOUNT), (TypeError, BufferError)),
            ((None, good, MOUNT), TypeError),
            ((base, good, None), TypeError),
            ((base, good, ""), OSError),
            ((base, good, "/" + "x" * 300), OSError),
            ((base, good, "/a\0b"), ValueError),
            ((base, good, MOUNT, -1), ValueError),
            ((base, good, MOUNT, 1.5), TypeError),
            ((base, good, MOUNT, 0, 2**40), ValueError),
        ):
            with self.subTest(arguments[1:]), self.assertRaises(error):
                iovec(*arguments)
        iovec(base, good.upper(), MOUNT)

    def test_no_subclass(self):
        with self.assertRaises(TypeError):
            type("mine", (iovec,), {})

    def test_cannot_be_pickled_or_copied(self):
        iov = made(bytearray(10))
        for whole in (iov, iov[0:5], io.iovec(iov, "/nowhere/link")):
            for call in (pickle.dumps, copy.copy, copy.deepcopy):
                with self.assertRaisesRegex(TypeError, "iovec.*pickle"):
                    call(whole)


class TestLifetime(unittest.TestCase):
    def test_base_is_kept_and_let_go(self):
        memory = mmap.mmap(-1, 8192)
        iov = made(memory)
        part = iov[0:10]
        view = memoryview(part)
        for last in ("iov", "part", "view"):
            with self.assertRaises(BufferError):
                memory.close()
            if last == "iov":
                del iov
            elif last == "part":
                del part
            else:
                view.release()
        memory.close()

    def test_closed_base(self):
        memory = mmap.mmap(-1, 8192)
        view = memoryview(memory)
        view.release()
        memory.close()
        for closed in (memory, view):
            with self.assertRaises(ValueError):
                made(closed)

    def test_nothing_is_leaked(self):
        base = bytearray(100)
        before = sys.getrefcount(base)
        gone = weakref.ref(made(base)[10:20])
        self.assertIsNone(gone())
        for _ in range(100):
            made(base)[0:10][0:5]
            with self.assertRaises(ValueError):
                made(base, block_size=-1)
        self.assertEqual(sys.getrefcount(base), before)


if __name__ == "__main__":
    unittest.main()
