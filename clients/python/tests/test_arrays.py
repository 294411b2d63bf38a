# SPDX-License-Identifier: Apache-2.0
"""numpy and torch access the memory of an iovec, if they are installed."""

import gc
import importlib
import unittest
import uuid

import daemon
from hf3fs_fuse import io
from hf3fs_py_usrbio import iovec

from mounted import PATIENCE_SECONDS, MountedTestCase, pattern


def need(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        daemon.not_tested(f"{error}; Debian's package is python3-{name}")


class TestNumpy(unittest.TestCase):
    def setUp(self):
        self.numpy = need("numpy")
        self.base = bytearray(64)
        self.iov = iovec(self.base, str(uuid.uuid4()), "/mnt/3fs")

    def test_views(self):
        for array in (
            self.numpy.frombuffer(self.iov, dtype=self.numpy.uint8),
            self.numpy.frombuffer(self.iov[0:64], dtype=self.numpy.uint8),
            self.numpy.asarray(memoryview(self.iov)),
        ):
            self.assertEqual((array.dtype, array.shape, array.flags.writeable), (self.numpy.uint8, (64,), True))
            array[5] += 1
        self.assertEqual(self.base[5], 3)

    def test_copies_in(self):
        self.iov[8:24] = self.numpy.arange(4, dtype=self.numpy.float32)
        self.assertEqual(list(self.numpy.frombuffer(self.iov[8:24], dtype=self.numpy.float32)), [0, 1, 2, 3])

    def test_slice_by(self):
        array = self.numpy.frombuffer(self.iov, dtype=self.numpy.uint8)
        self.assertEqual(self.iov.slice_by(array[16:32]).base_off, 16)

    def test_over_an_array(self):
        array = self.numpy.zeros(100, dtype=self.numpy.float32)
        iov = iovec(array, str(uuid.uuid4()), "/mnt/3fs")
        self.assertEqual(len(memoryview(iov)), 400)
        memoryview(iov)[:4] = b"\0\0\x80\x3f"
        self.assertEqual(array[0], 1.0)


class TestTorch(unittest.TestCase):
    def test_views(self):
        torch = need("torch")
        base = bytearray(64)
        iov = iovec(base, str(uuid.uuid4()), "/mnt/3fs")
        for buffer in (iov, iov[0:64]):
            tensor = torch.frombuffer(buffer, dtype=torch.uint8)
            self.assertEqual((tuple(tensor.shape), tensor.data_ptr()), ((64,), iov._at))
            tensor[7] += 1
        self.assertEqual(base[7], 2)


class TestOnMount(MountedTestCase):
    def numbers_as_offsets(self, number):
        data = pattern(200)
        fd, iov, ring = self.registered(data), self.buffer(4096), self.ring()
        ring.prepare(iov[number(0) : number(100)], True, number(fd), number(100))
        done = ring.submit().wait(min_results=number(1), max_results=number(4), timeout=PATIENCE_SECONDS)
        self.assertEqual([bytes(d) for d in done], [data[100:]])

    def test_a_truth_that_numpy_does_not_tell(self):
        fd, iov, ring = self.registered(b"x"), self.buffer(4096), self.ring()
        with self.assertRaises(ValueError):
            ring.prepare(iov, need("numpy").array([1, 0]), fd, 0, "userdata")
        self.assertEqual((ring.ior._in_flight, iov.iov.userdata), ({}, None))

    def test_a_tensor_of_read_file_outlives_it(self):
        torch = need("torch")
        data = pattern(3 << 20)
        kept = []

        def keep(view, offset):
            kept.append(torch.frombuffer(view, dtype=torch.uint8))
            return True

        io.read_file(self.path(data), block_size=1 << 20, cb=keep)
        gc.collect()
        self.assertEqual(bytes(kept[0].tolist()), data[: 1 << 20])

    def test_numpy_numbers(self):
        self.numbers_as_offsets(need("numpy").int64)

    def test_torch_numbers(self):
        self.numbers_as_offsets(need("torch").tensor)


if __name__ == "__main__":
    unittest.main()
