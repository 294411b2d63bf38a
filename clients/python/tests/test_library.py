# SPDX-License-Identifier: Apache-2.0
"""Where the C library is found, and that its structs match those declared here."""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import hf3fs_py_usrbio
from hf3fs_py_usrbio import _completions, _library

SOURCE = os.path.dirname(os.path.dirname(hf3fs_py_usrbio.__file__))


def import_with(**environment):
    """What an import prints in a process with this environment; an empty value is unset."""
    env = {k: v for k, v in {**os.environ, "PYTHONPATH": SOURCE, **environment}.items() if v}
    done = subprocess.run(
        [sys.executable, "-c", "import hf3fs_fuse.io"], env=env, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stderr.strip().splitlines()[-1:]


class TestLookup(unittest.TestCase):
    def test_override_wins_and_is_named(self):
        status, said = import_with(HF3FS_USRBIO_LIBRARY="/nowhere/lib.so")
        self.assertEqual(status, 1)
        for part in ("ImportError", "/nowhere/lib.so", "named by $HF3FS_USRBIO_LIBRARY", "Install"):
            self.assertIn(part, said[0])

    def test_nothing_found(self):
        if os.path.exists(os.path.join(SOURCE, "hf3fs_py_usrbio", _library.SONAME)):
            self.skipTest("an installed package has its library with it")
        status, said = import_with(HF3FS_USRBIO_LIBRARY="")
        if status == 0:
            self.skipTest("this system has a USRBIO library installed")
        for part in ("ImportError", _library.SONAME, "$HF3FS_USRBIO_LIBRARY is not set", "Install"):
            self.assertIn(part, said[0])

    def test_no_library_at_all(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as empty:
            status, said = import_with(HF3FS_USRBIO_LIBRARY=empty.name)
        self.assertEqual(status, 1)
        self.assertIn(empty.name, said[0])

    def test_another_library(self):
        status, said = import_with(HF3FS_USRBIO_LIBRARY="libc.so.6")
        self.assertEqual(status, 1)
        self.assertIn("libc.so.6 has no hf3fs_extract_mount_point, so it is not a USRBIO library", said[0])


class TestWithoutGil(unittest.TestCase):
    def test_rings_do_not_wait_for_each_other(self):
        entered, go_on = threading.Event(), threading.Event()

        def prep_io(ring):
            if ring == "slow":
                entered.set()
                go_on.wait(60)
            return ring

        self.addCleanup(go_on.set)
        with unittest.mock.patch.object(sys, "_is_gil_enabled", lambda: False, create=True):
            slow, fast = _library.prepare_function(), _library.prepare_function()
        with unittest.mock.patch.object(_library, "prep_io", prep_io):
            thread = threading.Thread(target=slow, args=("slow",))
            thread.start()
            self.assertTrue(entered.wait(60))
            self.assertEqual(fast("fast"), "fast")
            self.assertFalse(go_on.is_set())
            go_on.set()
            thread.join(60)


class TestCompletions(unittest.TestCase):
    def test_space_of_a_thread(self):
        """Twenty threads on a ring of 2**20."""
        self.assertLess(20 * _completions.Completions(1 << 20)._view.nbytes, 12 << 20)
        self.assertEqual(_completions.Completions(3).room, 3)


class TestStructs(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual(ctypes.sizeof(_library.Iov), 312)
        self.assertEqual(ctypes.sizeof(_library.Ior), 600)
        self.assertEqual(ctypes.sizeof(_library.Cqe), 24)
        self.assertEqual(_completions._CQE.size, 24)

    def test_offsets(self):
        iov = {"base": 0, "iovh": 8, "id": 16, "mount_point": 32, "size": 288, "block_size": 296, "numa": 304}
        ior = {"iov": 0, "iorh": 312, "mount_point": 320, "for_read": 576, "io_depth": 580}
        ior.update(priority=584, timeout=588, flags=592)
        cqe = {"index": 0, "reserved": 4, "result": 8, "userdata": 16}
        for struct, fields in ((_library.Iov, iov), (_library.Ior, ior), (_library.Cqe, cqe)):
            self.assertEqual({name: getattr(struct, name).offset for name, _ in struct._fields_}, fields)

    def test_iov_as_the_library_fills_it(self):
        memory = bytearray(64)
        filled = (ctypes.c_char * 400)(*b"\xee" * 400)
        iov = _library.Iov.from_buffer(filled)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.assertEqual(_library.iovwrap(iov, address, bytes(range(16)), b"/mnt/3fs", 64, 32, 7), 0)
        self.assertEqual((iov.base, iov.iovh, iov.size, iov.block_size, iov.numa), (address, None, 64, 32, 7))
        self.assertEqual((ctypes.string_at(ctypes.addressof(iov) + 16, 16), iov.mount_point), (bytes(range(16)), b"/mnt/3fs"))
        # It overwrote all of its struct and nothing beyond.
        self.assertEqual(filled.raw[312:], b"\xee" * 88)


if __name__ == "__main__":
    unittest.main()
