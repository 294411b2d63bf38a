# SPDX-License-Identifier: Apache-2.0
"""Rings on a real mount."""

import datetime
import errno
import gc
import linecache
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock
import weakref

from hf3fs_fuse import io
from hf3fs_py_usrbio import ioring

from mounted import PATIENCE_SECONDS, MountedTestCase, pattern

# Where the packages are.
SOURCE = os.path.dirname(os.path.dirname(io.__file__))


def below_wait(frame):
    """Whether the frame belongs to a wait that has not decided yet what it returns."""
    if frame.f_code is not ioring.wait.__code__:
        return frame.f_code.co_filename.startswith(SOURCE)
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "return answer"


class TestTransfer(MountedTestCase):
    def test_case_79_empty_slice_and_idle_wait(self):
        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring()
        with self.assertRaises(OSError) as caught:
            ring.prepare(iov[:0], True, fd, 0)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        for timeout in (0.1, 0, -1, datetime.timedelta(milliseconds=10)):
            self.assertEqual(ring.wait(min_results=1, timeout=timeout), [])
        began = time.monotonic()
        self.assertEqual(ring.wait(min_results=1, timeout=1), [])
        took = time.monotonic() - began
        self.assertTrue(0.99 <= took < PATIENCE_SECONDS, took)

    def test_case_80_priority_is_ignored(self):
        for priority in (io.IorPriority.HIGH, io.IorPriority.LOW, io.IorPriority.NORMAL, None, -1):
            before = self.links()
            ring = self.ring(priority=priority, timeout=7)
            [link] = set(self.links()) - set(before)
            self.assertEqual(link.split(".")[1:], ["r0", "t7"])
            ring.ior.destroy()
            self.assertEqual(self.links(), before)

    def test_case_81_slice_of_a_slice(self):
        data = pattern(100)
        fd, iov, ring = self.registered(data), self.buffer(4096), self.ring()
        part = iov[512:1024][0:100]
        self.assertEqual(part.base_off, 512)
        ring.prepare(part, True, fd, 0)
        [done] = ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertIs(done, part)
        self.assertEqual(done.result, 100)
        self.assertEqual(bytes(iov[0:4096]), bytes(512) + data + bytes(4096 - 612))

    def test_read_and_write(self):
        data = pattern(1 << 20)
        fd, iov = self.registered(), self.buffer(1 << 20)
        write, read = self.ring(for_read=False), self.ring()
        iov[:] = data
        mark = object()
        self.assertIs(write.ior, write.prepare(iov, False, fd, 4096, mark))
        [done] = write.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual((done.result, done.userdata), (1 << 20, mark))
        self.assertEqual(os.pread(fd, 1 << 20, 4096), data)
        iov[:] = bytes(1 << 20)
        read.prepare(iov=iov, read=True, fd=fd, off=4096, userdata=None)
        [done] = read.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual((done.result, bytes(done)), (1 << 20, data))
        # Short at the end of the file, nothing beyond it.
        for offset, result in ((4096 + (1 << 20) - 10, 10), (1 << 22, 0)):
            read.prepare(iov[0:100], True, fd, offset)
            [done] = read.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
            self.assertEqual(done.result, result)

    def test_link_of_an_iovec(self):
        before = self.links()
        iov = self.buffer(8192, block_size=4096)
        self.assertTrue(iov.link.startswith(self.mount + "/3fs-virt/iovs/"))
        self.assertEqual(set(self.links()) - set(before), {os.path.basename(iov.link)})
        self.assertTrue(iov.link.endswith(".b4096"))
        del iov
        self.assertEqual(self.links(), before)

    def test_block_size_and_numa_reach_the_native_iovec(self):
        iov = self.buffer(8192, block_size=4096, numa=0)
        root = iov.iov._root._obj
        self.assertEqual((root.block_size, root.numa, root.size), (4096, 0, 8192))

    def test_shared_memory_is_closed_before_the_iovec(self):
        data = pattern(100)
        fd, ring, shm = self.registered(data), self.ring(), self.shm(4096)
        iov = io.make_iovec(shm, self.mount)
        part = iov.iov.slice_by(shm.buf[100:200])
        self.assertEqual((part.base_off, len(memoryview(part))), (100, 100))
        self.assertEqual(iov[50:300].slice_by(shm.buf[100:200]).base_off, 100)
        for start in (0, 250):
            with self.assertRaises(IndexError):
                iov[50:300].slice_by(shm.buf[start : start + 100])
        ring.prepare(part, True, fd, 0)
        ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual(bytes(shm.buf[100:200]), data)
        shm.close()
        self.assertEqual(bytes(part), data)
        ring.prepare(part, True, fd, 50)
        [done] = ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual((done.result, bytes(part[0:50])), (50, data[50:]))
        with self.assertRaises(IndexError):
            iov.iov.slice_by(bytearray(100))
        self.assertEqual(iov.iov.slice_by(memoryview(part)[10:]).base_off, 110)

    def test_struct_of_the_ring(self):
        ring = self.ring(8, for_read=False, io_depth=-4, timeout=20, flags=2)
        made = ring.ior._ring._obj
        self.assertEqual(
            (made.for_read, made.io_depth, made.priority, made.timeout, made.flags, made.iov.size),
            (False, -4, 0, 20, 2, ioring.size_for_entries(8)),
        )
        self.assertEqual(made.mount_point.decode(), self.mount)
        self.assertEqual((ring.ior.entries, ring.size_for_entries(128), ioring.size_for_entries(-1)), (8, 16528, 0))


class TestErrors(MountedTestCase):
    def refused(self, number, call, *arguments, **options):
        with self.assertRaises(OSError) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.errno, number, caught.exception)
        self.assertTrue(caught.exception.strerror)

    def test_prepare(self):
        data = b"x" * 100
        iov, ring = self.buffer(4096), self.ring(2)
        fd, write_only = self.registered(data), self.opened(self.path(data, "w"), os.O_WRONLY)
        io.register_fd(write_only)
        self.addCleanup(io.deregister_fd, write_only)
        mark = object()
        count = sys.getrefcount(mark)
        for number, arguments in (
            (errno.EINVAL, (iov[5:5], True, fd, 0)),
            (errno.EINVAL, (iov, False, fd, 0)),
            (errno.EBADF, (iov, True, 900, 0)),
            (errno.EACCES, (iov, True, write_only, 0)),
        ):
            self.refused(number, ring.prepare, *arguments, mark)
            self.assertEqual((sys.getrefcount(mark), ring.ior._in_flight), (count, {}))
        for error, arguments in (
            (TypeError, (iov, True, fd, "0")),
            (TypeError, (iov, True, fd, 1.0)),
            (TypeError, (iov, True, None, 0)),
            (TypeError, (None, True, fd, 0)),
            (TypeError, (bytearray(10), True, fd, 0)),
            (ValueError, (iov, True, fd, -1)),
            (ValueError, (iov, True, fd, 2**64)),
            (ValueError, (iov, True, 2**32 + fd, 0)),
            (TypeError, (iov, True, fd)),
        ):
            with self.assertRaises(error):
                ring.prepare(*arguments)

    def test_full_ring(self):
        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(2)
        ring.prepare(iov[0:1], True, fd, 0).prepare(iov[1:2], True, fd, 0)
        with self.assertRaises(BlockingIOError):
            ring.prepare(iov[2:3], True, fd, 0)
        self.assertEqual(len(ring.submit().wait(min_results=2, timeout=PATIENCE_SECONDS)), 2)
        ring.prepare(iov[2:3], True, fd, 0)

    def test_offset_too_large(self):
        fd, iov, ring = self.registered(b"x"), self.buffer(4096), self.ring()
        ring.prepare(iov, True, fd, 2**63)
        [done] = ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertEqual(done.result, -errno.EFBIG)

    def test_userdata_is_let_go(self):
        class Mark:
            pass

        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring()
        mark = Mark()
        gone = weakref.ref(mark)
        ring.prepare(iov[0:100], True, fd, 0, mark)
        del mark
        self.assertIsNotNone(gone())
        ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertIsNone(gone())

    def test_make_ioring(self):
        for options in ({"entries": 0}, {"entries": -5}, {"io_depth": 5}, {"timeout": -1}):
            self.refused(errno.EINVAL, self.ring, **options)
        for options in ({"entries": "4"}, {"io_depth": 1.5}, {"timeout": 0.5}, {"flags": None}):
            with self.assertRaises(TypeError):
                self.ring(**options)
        for options in ({"entries": 2**32 + 4}, {"flags": -1}):
            with self.assertRaises(ValueError):
                self.ring(**options)
        self.assertEqual([link for link in self.links() if ".r" in link], [])

    def test_wrong_mounts(self):
        shm = self.shm(4096)
        for mount in ("/nowhere", "/tmp", self.path(b"a file"), os.path.join(self.mount, "3fs-virt")):
            for call in (lambda: io.make_ioring(mount, 4), lambda: io.make_iovec(shm, mount)):
                with self.assertRaisesRegex(OSError, "extract_mount_point") as caught:
                    call()
                self.assertIn(caught.exception.errno, (errno.ENOENT, errno.ENOTDIR))
                self.assertEqual(caught.exception.filename, mount)
        for call in (lambda m: io.make_ioring(m, 4), lambda m: io.make_iovec(shm, m)):
            for mount in ("", "/" + "x" * 300):
                self.refused(errno.EINVAL if not mount else errno.ENAMETOOLONG, call, mount)
            with self.assertRaisesRegex(TypeError, "not on 3FS"):
                call(None)

    def test_other_spellings_of_the_mount(self):
        fd = self.registered(b"x" * 100)
        other = self.daemon.data + ".link"
        os.symlink(self.mount, other)
        self.addCleanup(os.unlink, other)
        self.addCleanup(os.chdir, os.getcwd())
        for mount in (self.mount + "/", other, other + "//", os.path.basename(self.mount)):
            os.chdir(os.path.dirname(self.mount))
            before = self.links()
            shm = self.shm(4096)
            iov, ring = io.make_iovec(shm, mount), io.make_ioring(mount, 4)
            os.chdir("/")
            ring.prepare(iov[0:100], True, fd, 0)
            self.assertEqual([d.result for d in ring.submit().wait(min_results=1, timeout=PATIENCE_SECONDS)], [100])
            del iov, ring
            self.assertEqual(self.links(), before)

    def test_shared_memory_that_does_not_do(self):
        short = self.shm(8192)
        os.truncate("/dev/shm/" + short.name, 4096)
        with self.assertRaisesRegex(OSError, "8192 bytes.*4096.*larger") as caught:
            io.make_iovec(short, self.mount)
        self.assertEqual(caught.exception.filename, "/dev/shm/" + short.name)
        good = self.shm(4096)
        with self.assertRaisesRegex(OSError, "block_size is 5000.*4096"):
            io.make_iovec(good, self.mount, block_size=5000)
        closed = self.shm(4096)
        closed.close()
        with self.assertRaisesRegex(OSError, "closed.*before close"):
            io.make_iovec(closed, self.mount)
        name = good.name
        unnamed = type("Unnamed", (), {"name": name + "gone", "buf": good.buf})()
        with self.assertRaisesRegex(FileNotFoundError, "before unlink"):
            io.make_iovec(unnamed, self.mount)
        other = self.shm(4096)
        for name, buf in ((other.name, good.buf), (good.name, good.buf[100:200]), (good.name, bytearray(4096))):
            with self.assertRaisesRegex(OSError, "not the shared memory of this name"):
                io.make_iovec(types.SimpleNamespace(name=name, buf=buf), self.mount)
        for block_size, error in ((True, TypeError), ("4096", TypeError), (1.5, TypeError), (-1, ValueError)):
            with self.assertRaisesRegex(error, "block_size"):
                io.make_iovec(good, self.mount, block_size=block_size)
        self.assertEqual([link for link in self.links() if ".r" not in link], [])

    def test_destroyed_ring(self):
        fd, iov, ring = self.registered(b"x"), self.buffer(4096), self.ring()
        ring.ior.destroy()
        ring.ior.destroy()
        for call in (
            lambda: ring.prepare(iov, True, fd, 0),
            ring.submit,
            ring.wait,
            lambda: ring.ior.entries,
        ):
            with self.assertRaisesRegex(OSError, "destroyed"):
                call()

    def test_unfinished_rings_are_harmless(self):
        with self.assertRaises(OSError):
            ioring("/nowhere", 4)
        half = ioring.__new__(ioring)
        with self.assertRaises(AttributeError):
            half.submit()
        del half
        gc.collect()

    def test_cannot_be_pickled(self):
        ring = self.ring()
        for whole in (ring, ring.ior):
            with self.assertRaisesRegex(TypeError, "create one in each process"):
                pickle.dumps(whole)


class TestWait(MountedTestCase):
    def queue(self, count, entries=None):
        """A ring with count completed reads."""
        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(entries or count)
        parts = [iov[i : i + 1] for i in range(count)]
        for part in parts:
            ring.prepare(part, True, fd, 0)
        ring.submit()
        # Certainly completed, because they were collected, and still to be delivered.
        done = ring.wait(min_results=count, timeout=PATIENCE_SECONDS)
        ring.ior._early.extend(done)
        return ring, parts

    def test_never_more_than_max_results(self):
        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(64)
        for _ in range(50):
            for i in range(64):
                ring.prepare(iov[i : i + 1], True, fd, 0)
            ring.submit()
            left = 64
            while left:
                most = min(5, left)
                done = ring.wait(max_results=most, min_results=1, timeout=PATIENCE_SECONDS)
                self.assertTrue(1 <= len(done) <= most)
                left -= len(done)

    def test_how_many(self):
        for options, count in (
            ({}, 1),
            ({"max_results": 3}, 3),
            ({"min_results": 4}, 4),
            ({"max_results": 2, "min_results": 4}, 4),
            ({"max_results": 100, "min_results": 2}, 5),
            ({"max_results": -1, "min_results": -1}, 1),
        ):
            ring, parts = self.queue(5)
            done = ring.wait(timeout=PATIENCE_SECONDS, **options)
            self.assertEqual([id(d) for d in done], [id(p) for p in parts[:count]], options)

    def test_more_than_there_is(self):
        ring, _ = self.queue(3, entries=4)
        self.assertEqual(len(ring.wait(min_results=1000, timeout=0.3)), 3)

    def test_arguments(self):
        ring = self.ring()
        with self.assertRaises(TypeError):
            ring.ior.wait(1)
        with self.assertRaises(TypeError):
            ring.wait(1)
        for timeout, error in (("1", TypeError), ([], TypeError), (float("nan"), ValueError), (10**400, ValueError)):
            with self.assertRaises(error):
                ring.wait(timeout=timeout)
        with self.assertRaises(TypeError):
            ring.wait(max_results=1.5)
        for timeout in (True, 0, 0.0, float("inf"), None, -3, datetime.timedelta(0)):
            self.assertEqual(ring.wait(timeout=timeout), [])

    def test_ctrl_c(self):
        text = """
import sys
from hf3fs_fuse import io
ring = io.make_ioring(sys.argv[1], 4)
try:
    print("waiting", flush=True)
    ring.wait(min_results=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        process = self.script(text, self.mount)
        self.assertEqual(process.stdout.readline(), "waiting\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((out, err, process.returncode), ("interrupted\n", "", 0))

    @unittest.skipIf(sys.version_info < (3, 10), "runs signal handlers between an assignment and the return, too")
    def test_interrupted_waits_lose_nothing(self):
        class Interrupted(Exception):
            pass

        armed = [False]

        def interrupt(_, frame):
            # Once in each wait, in whichever frame of the packages; what the wait has returned is the caller's.
            while frame is not None and armed[0]:
                if below_wait(frame):
                    armed[0] = False
                    raise Interrupted
                frame = frame.f_back

        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(16)
        previous = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        interrupts = 0
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.00011)
        try:
            for round_number in range(1500):
                for i in range(16):
                    ring.prepare(iov[i : i + 1], True, fd, 0, (round_number, i))
                ring.submit()
                seen = []
                deadline = time.monotonic() + PATIENCE_SECONDS
                while len(seen) < 16 and time.monotonic() < deadline:
                    armed[0] = True
                    try:
                        done = ring.wait(max_results=5, min_results=1, timeout=float(PATIENCE_SECONDS))
                    except Interrupted:
                        interrupts += 1
                        continue
                    armed[0] = False
                    self.assertLessEqual(len(done), 5)
                    seen += [d.userdata for d in done]
                self.assertEqual(sorted(seen), [(round_number, i) for i in range(16)])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(interrupts, 10)
        self.assertEqual((ring.ior._in_flight, len(ring.ior._early)), ({}, 0))

    def test_an_exception_at_any_instruction_loses_nothing(self):
        class Interrupted(Exception):
            pass

        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(4)

        def interrupted_at(instruction):
            """Whether the wait had so many instructions."""
            left = [instruction]

            def trace(frame, event, _):
                if not frame.f_code.co_filename.startswith(SOURCE):
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode" and below_wait(frame):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Interrupted  # this also ends the tracing
                return trace

            for i in range(4):
                ring.prepare(iov[i : i + 1], True, fd, 0, i)
            ring.submit()
            done = []
            sys._getframe().f_trace_opcodes = True  # Python 3.12 wants to see one before it traces
            sys.settrace(trace)
            try:
                done = ring.wait(max_results=3, min_results=3, timeout=float(PATIENCE_SECONDS))
                sys.settrace(None)
            except Interrupted:
                pass
            finally:
                sys.settrace(None)
            more = ring.wait(min_results=4 - len(done), timeout=float(PATIENCE_SECONDS))
            self.assertEqual(sorted(d.userdata for d in done + more), [0, 1, 2, 3], f"interrupted at instruction {instruction}")
            return not done

        instruction = 0
        while interrupted_at(instruction):
            instruction += 1
        self.assertGreater(instruction, 100)

    def test_more_results_than_a_thread_takes_at_once(self):
        fd, buffer = self.registered(b"x" * 100), self.buffer(4096)
        with unittest.mock.patch("hf3fs_py_usrbio._completions._MOST", 3):
            ring = self.ring(8)
            for k in range(8):
                ring.prepare(buffer[k : k + 1], True, fd, k)
            done = ring.submit().wait(min_results=8, timeout=PATIENCE_SECONDS)
        self.assertEqual([slice.result for slice in done], [1] * 8)

    def test_a_hung_daemon_does_not_keep_ctrl_c_away(self):
        text = """
import sys
from hf3fs_fuse import io
ring = io.make_ioring(sys.argv[1], 4)
try:
    print("waiting", flush=True)
    ring.wait(min_results=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        env = {**os.environ, "HF3FS_USRBIO_ANSWER_MS": "3600000"}
        process = self.script(text, self.mount, env=env)
        self.assertEqual(process.stdout.readline(), "waiting\n")
        with self.daemon.stalled():
            time.sleep(2.5)  # so that it has been checked
            process.send_signal(signal.SIGINT)
            self.assertTrue(select.select([process.stdout], [], [], PATIENCE_SECONDS)[0])
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((out, err, process.returncode), ("interrupted\n", "", 0))

    @unittest.skipIf(sys.version_info < (3, 10), "runs signal handlers between an assignment and the return, too")
    def test_a_storm_of_interrupts_loses_nothing(self):
        """Signal handlers that raise, one after the other, even while an interrupted wait cleans up."""

        class Interrupted(Exception):
            pass

        armed, handling = [False], [False]

        def interrupt(_, frame):
            if handling[0]:  # on a slow machine the next signal comes before this one is handled
                return
            handling[0] = True
            try:
                while frame is not None and armed[0]:
                    if below_wait(frame):
                        raise Interrupted
                    frame = frame.f_back
            finally:
                handling[0] = False

        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(16)
        previous = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        for round_number in range(300):
            for i in range(16):
                ring.prepare(iov[i : i + 1], True, fd, 0, i)
            ring.submit()
            seen = []
            signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
            try:
                for _ in range(20):
                    try:
                        armed[0] = True
                        done = ring.wait(max_results=5, min_results=1, timeout=0.01)
                        armed[0] = False
                        seen += [d.userdata for d in done]
                    except Interrupted:
                        armed[0] = False
            finally:
                armed[0] = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            left = ring.wait(min_results=16 - len(seen), timeout=float(PATIENCE_SECONDS))
            seen += [d.userdata for d in left]
            self.assertEqual(sorted(seen), list(range(16)), round_number)

    def test_ctrl_c_does_not_look_at_all_entries(self):
        ring = self.ring(1 << 16)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def interrupt(*_):
            if hasattr(ring.ior._of_thread, "memory"):  # it waits
                os.kill(os.getpid(), signal.SIGINT)
            else:
                signal.setitimer(signal.ITIMER_REAL, 0.2)

        signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, signal.SIG_DFL)
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            ring.wait(min_results=1, timeout=PATIENCE_SECONDS)
        self.assertLessEqual(ring.ior._of_thread.memory.asked, 1)


class TestLifetimes(MountedTestCase):
    def read(self, part):
        fd, ring = self.registered(b"x" * 100), self.ring()
        ring.prepare(part, True, fd, 0)
        [done] = ring.submit().wait(min_results=1, timeout=float(PATIENCE_SECONDS))
        return done.result

    def test_a_slice_keeps_the_registration(self):
        part = self.buffer(4096)[0:50]
        gc.collect()
        link = part._root._obj.registration.link
        self.assertEqual((self.read(part), os.path.lexists(link)), (50, True))
        del part
        self.assertFalse(os.path.lexists(link))

    def test_a_prepared_request_keeps_the_registration(self):
        fd, ring = self.registered(b"x" * 100), self.ring()
        before = self.links()
        ring.prepare(self.buffer(4096)[0:50], True, fd, 0)
        gc.collect()
        [done] = ring.submit().wait(min_results=1, timeout=float(PATIENCE_SECONDS))
        self.assertEqual(done.result, 50)
        del done
        self.assertEqual(self.links(), before)

    def test_an_iovec_is_a_buffer(self):
        iov = self.buffer(4096)
        self.assertEqual((len(iov), memoryview(iov).nbytes, len(iov[1:3])), (4096, 4096, 2))
        memoryview(iov)[5] = 7
        self.assertEqual(bytes(iov[5:6]), b"\7")
        self.assertIsInstance(iov, io.iovec)
        self.assertIs(iov.iov, iov)
        self.assertEqual(self.read(iov), 100)

    def test_an_iovec_that_owns_its_memory(self):
        objects = set(os.listdir("/dev/shm"))
        iov = io.make_iovec(8192, self.mount)
        self.assertFalse({name for name in set(os.listdir("/dev/shm")) - objects if str(os.getpid()) in name})
        self.assertEqual((len(iov), bytes(iov)), (8192, bytes(8192)))
        self.assertEqual((self.read(iov), bytes(iov[:101])), (100, b"x" * 100 + b"\0"))
        for size in (0, -1):
            with self.assertRaises(ValueError):
                io.make_iovec(size, self.mount)
        with self.assertRaises(OSError) as caught:
            io.make_iovec(1 << 60, self.mount)
        self.assertIn("/dev/shm", str(caught.exception))
        for wrong in (True, 1.5, None):
            with self.assertRaises((TypeError, AttributeError)):
                io.make_iovec(wrong, self.mount)

    def test_an_ended_registration_is_not_renewed(self):
        before, shm = self.links(), self.shm(4096)
        iov = io.make_iovec(shm, self.mount)
        iov.renew()
        self.assertEqual(len(self.links()), len(before) + 1)
        iov.unregister()
        for _ in range(3):
            with self.assertRaisesRegex(OSError, "has ended"):
                iov.renew()
        iov.unregister()
        self.assertEqual(self.links(), before)

    def test_an_exception_in_make_iovec_leaves_no_registration(self):
        class Interrupted(Exception):
            pass

        shm, before = self.shm(4096), self.links()

        def interrupted_at(instruction):
            left = [instruction]

            def trace(frame, event, _):
                if frame.f_code.co_filename != io.__file__:
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode":
                    left[0] -= 1
                    if left[0] < 0:
                        raise Interrupted  # this also ends the tracing
                return trace

            sys._getframe().f_trace_opcodes = True  # Python 3.12 wants to see one before it traces
            made = None  # so that its finaliser is not traced
            sys.settrace(trace)
            try:
                made = io.make_iovec(shm, self.mount)
            except Interrupted:
                pass
            finally:
                sys.settrace(None)
            return made is None

        instruction = 0
        while interrupted_at(instruction):
            self.assertEqual(self.links(), before, f"interrupted at instruction {instruction}")
            instruction += 1
        self.assertGreater(instruction, 50)

    def test_with(self):
        before = self.links()
        fd = self.registered(b"x" * 100)
        with io.make_iovec(4096, self.mount) as iov, io.make_ioring(self.mount, 2) as ring:
            self.assertEqual(len(self.links()), len(before) + 2)
            ring.prepare(iov[0:10], True, fd, 0)
            [done] = ring.submit().wait(min_results=1, timeout=float(PATIENCE_SECONDS))
            self.assertEqual(done.result, 10)
        self.assertEqual(self.links(), before)
        with self.assertRaises(OSError):
            ring.submit()
        self.assertEqual(bytes(iov[0:10]), b"x" * 10)  # the memory is still there
        iov.unregister()  # again: nothing happens

    def test_what_other_programs_find_imported(self):
        """SGLang's bench_client.py imports multiprocessing, and finds its module shared_memory there."""
        self.run_script(
            "import multiprocessing\n"
            "from hf3fs_fuse import io\n"
            "multiprocessing.shared_memory.SharedMemory, io.os.path, io.uuid4, io.multiprocessing.shared_memory\n"
        )

    def test_demo(self):
        path = os.path.join(self.mount, "demo")
        process = subprocess.run(
            [sys.executable, "-W", "error", "-m", "hf3fs_fuse.fuse_demo", path], capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        self.assertIn("1024 bytes written", process.stdout)
        self.assertFalse(os.path.exists(path))


class TestThreads(MountedTestCase):
    def run_all(self, *targets):
        failures = []

        def guarded(target):
            try:
                target()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=guarded, args=(target,), daemon=True) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])

    def exchange(self, preparers, waiters, count=2000):
        fd, iov, ring = self.registered(b"x" * 100), self.buffer(4096), self.ring(32)
        seen, end = [], time.monotonic() + PATIENCE_SECONDS
        room = threading.Semaphore(32)

        def prepare(preparer):
            for i in range(count):
                self.assertTrue(room.acquire(timeout=PATIENCE_SECONDS))
                ring.prepare(iov[i : i + 1], True, fd, 0, (preparer, i)).submit()

        def wait():
            while len(seen) < preparers * count and time.monotonic() < end:
                done = ring.wait(max_results=7, min_results=1, timeout=0.01)
                seen.extend((d.userdata, d.result) for d in done)
                for _ in done:
                    room.release()

        self.run_all(*([lambda preparer=preparer: prepare(preparer) for preparer in range(preparers)] + [wait] * waiters))
        self.assertEqual(sorted(seen), [((preparer, i), 1) for preparer in range(preparers) for i in range(count)])
        self.assertEqual(ring.ior._in_flight, {})

    def test_one_prepares_one_waits(self):
        self.exchange(1, 1)

    def test_several_of_both(self):
        self.exchange(3, 3)

    def test_destroyed_under_a_waiter(self):
        before = self.links()
        ring = self.ring()
        waiting, ended = threading.Event(), []

        def wait():
            waiting.set()
            try:
                ring.wait(min_results=1)
            except OSError as error:
                ended.append(str(error))

        def destroy():
            self.assertTrue(waiting.wait(PATIENCE_SECONDS))
            ring.ior.destroy()

        self.run_all(wait, destroy)
        self.assertEqual(len(ended), 1)
        self.assertIn("destroyed", ended[0])
        self.assertEqual(self.links(), before)

    def test_other_threads_run_meanwhile(self):
        fd, iov, ring, waits = self.registered(b"x" * 100), self.buffer(4096), self.ring(), threading.Event()
        done = []

        def wait():
            waits.set()
            done.extend(ring.wait(min_results=1, timeout=float(PATIENCE_SECONDS)))

        def read():
            self.assertTrue(waits.wait(PATIENCE_SECONDS))
            for _ in range(1000):
                time.sleep(0)
            ring.prepare(iov[0:1], True, fd, 0).submit()

        # The wait stays in C: if it kept the interpreter, it would end without the read.
        with unittest.mock.patch("hf3fs_py_usrbio._completions._SLICE_SECONDS", PATIENCE_SECONDS):
            self.run_all(wait, read)
        self.assertEqual(len(done), 1)


if __name__ == "__main__":
    unittest.main()
