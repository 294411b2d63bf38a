# SPDX-License-Identifier: Apache-2.0
"""Fork, spawn, and processes that end."""

import os
import signal
import time
import unittest

from mounted import PATIENCE_SECONDS, MountedTestCase

CLIENT = """
import glob, os, pathlib, sys, types
from multiprocessing.shared_memory import SharedMemory
from hf3fs_fuse import io

path = sys.argv[1]
mount = io.extract_mount_point(path)
fd = os.open(path, os.O_RDONLY)
io.register_fd(fd)
shm = SharedMemory(create=True, size=4096)
iov = io.make_iovec(shm, mount)
shm.unlink()
ring = io.make_ioring(mount, 4)

def read():
    ring.prepare(iov[0:100], True, fd, 0)
    return [done.result for done in ring.submit().wait(min_results=1, timeout=120)]

def mine():
    return [name for name in os.listdir(mount + "/3fs-virt/iovs") if not name.startswith("submit-ios")]
"""


class TestFork(MountedTestCase):
    def test_a_child_leaves_the_parents_links(self):
        out = self.run_script(
            CLIENT
            + """
before = mine()
child = os.fork()
if child == 0:
    for call in (read, ring.submit, lambda: ring.wait(timeout=0)):
        try:
            call()
        except OSError as error:
            assert "create one in each process" in str(error), error
        else:
            raise AssertionError("one ring in two processes")
    del ring, iov
    sys.exit(7)  # with finalisers
assert os.waitpid(child, 0)[1] >> 8 == 7
print(mine() == before, len(before), read())
child = os.fork()
if child == 0:
    own = io.make_ioring(mount, 4)
    assert len(mine()) == 3
    own.ior.destroy()
    assert mine() == before
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
del ring, iov
print(mine())
shm.close()
""",
            self.path(b"x" * 100),
        )
        self.assertEqual(out, "True 2 [100]\n[]\n")

    def test_case_64_a_child_goes_on_after_the_parent(self):
        for how in ("os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"):
            with self.subTest(how):
                process = self.script(
                    CLIENT
                    + f"""
import signal
ended, end = os.pipe()
if os.fork() == 0:
    os.close(end)
    os.read(ended, 1)  # ends with the parent
    print([read() for _ in range(3)], flush=True)
    os._exit(0)
{how}
""",
                    self.path(b"x" * 100),
                )
                out, err = process.communicate(timeout=PATIENCE_SECONDS)
                self.assertEqual(out, "[[100], [100], [100]]\n", err)
        self.nothing_left()

    def nothing_left(self):
        """The daemon removes what dead processes had as soon as it notices their end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.links() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.links(), [])

    def test_killed(self):
        process = self.script(CLIENT + "print(mine(), flush=True)\nsys.stdin.read()", self.path(b"x" * 100), stdin=-1)
        self.assertIn(".r0.t0", process.stdout.readline())
        self.assertEqual(len(self.links()), 2)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
        self.nothing_left()

    def test_multiprocessing(self):
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method):
                out = self.run_script(
                    """
import multiprocessing, os, sys
sys.path.insert(0, os.path.dirname(sys.argv[2]))
import work
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[3]).Pool(2) as pool:
        print(pool.map(work.read, [sys.argv[1]] * 4))
        try:
            pool.map(len, [work.ring_of(sys.argv[1])])
        except TypeError as error:
            print(error)
""",
                    self.path(b"x" * 100),
                    _work_module(self),
                    method,
                )
                self.assertEqual(
                    out,
                    "[100, 100, 100, 100]\n"
                    "an ioring belongs to one process and cannot be pickled; create one in each process, or fork\n",
                )


def _work_module(test):
    path = os.path.join(os.path.dirname(test.mount), "work.py")
    with open(path, "w") as f:
        f.write(
            """
from hf3fs_fuse import io

def read(path):
    return len(io.read_file(path))

def ring_of(path):
    return io.make_ioring(io.extract_mount_point(path), 4)
"""
        )
    return path


class TestEnd(MountedTestCase):
    ORDERS = (
        "",
        "del ring, iov; shm.close()",
        "del iov, ring; shm.close()",
        "part = iov[0:10]; del iov; del ring; del part; shm.close()",
        "iov = None; io.deregister_fd(fd); os.close(fd); shm.close()",
        "sys.modules.clear()",
        "sys.cycle = [ring, iov, shm]; sys.cycle.append(sys.cycle); del ring, iov; del shm",
        "import threading; threading.Thread(target=lambda: ring.wait(min_results=1), daemon=True).start()",
        "import atexit; atexit.register(ring.ior.destroy)",
        # Attributes are freed in the order in which they were set: the memory first.
        "c = types.SimpleNamespace(shm=shm, ring=ring, iov=iov); del shm, ring, iov; del c; "
        "held = pathlib.Path('/proc/self/maps').read_text(), [os.path.realpath(p) for p in glob.glob('/proc/self/fd/*')]; "
        "assert 'psm_' not in str(held), held",
        "c = types.SimpleNamespace(shm=shm, part=iov[0:10]); del shm, ring, iov",
    )

    def test_any_order(self):
        path = self.path(b"x" * 100)
        for order in self.ORDERS:
            with self.subTest(order):
                process = self.script(CLIENT + f"assert read() == [100]\nprint('fine', flush=True)\n{order}\n", path)
                out, err = process.communicate(timeout=PATIENCE_SECONDS)
                self.assertEqual((out, err, process.returncode), ("fine\n", "", 0))

    def test_an_ordered_exit_takes_links_away(self):
        """The process removes them at once; the daemon would notice only later."""
        before = self.links()
        process = self.script(CLIENT + "print(len(mine()), flush=True)", self.path(b"x" * 100))
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((out, self.links()), ("2\n", before), err)


if __name__ == "__main__":
    unittest.main()
