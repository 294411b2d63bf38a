# SPDX-License-Identifier: Apache-2.0
"""Rings: prepare, submit, wait."""

import collections
import contextlib
import ctypes
import errno
import itertools
import os
import threading
import time

from . import _library
from ._arguments import INT_MAX, INT_MIN, U64_MAX, integer, mount_path
from ._asyncwait import AsyncWait
from ._completions import Completions, end_of
from ._explain import os_error, registration_error
from ._iovec import iovec
from ._owner import here, lives, may_remove
from ._watch import Watch

_PREPARE_SAYS = {
    errno.EINVAL: "prepare: the slice is empty, or the ring is for the other direction",
    errno.EBADF: "prepare: the descriptor is not registered; call register_fd() first",
    errno.EACCES: "prepare: the file was opened for the other direction",
    errno.EAGAIN: "prepare: the ring is full; wait() for completions first",
    errno.EIO: "prepare: the ring's memory has been overwritten; create a new ring",
}

_WAIT_SAYS = {errno.EIO: "wait: the ring's memory has been overwritten; create a new ring"}


def _extend(taker, taken):
    """Pops and appends within one call of C, so that no signal comes between the two."""
    with contextlib.suppress(KeyError, IndexError):  # another waiter was faster
        taker.extend(taken)


def _move(giver, taker, most):
    if giver:
        _extend(taker, itertools.starmap(giver.popleft, itertools.repeat((), most)))


class _Ring(_library.Ior):
    """The ring in C. It is destroyed with its last reference, so not during a call."""

    pid = None

    def __del__(self, _destroy=_library.iordestroy, _may_remove=may_remove):
        if self.pid is not None and _may_remove(self.pid):
            _destroy(self)


class ioring:
    """One ring, for reads or for writes.

    Any thread may call any method at any time. A number in the ring matches requests with their
    completions, so a completion may arrive before prepare() has returned.
    """

    __slots__ = (
        "_ring",
        "_make",
        "_prep_io",
        "_entries",
        "_watch",
        "_user",
        "_numbers",
        "_in_flight",
        "_early",
        "_of_thread",
        "__weakref__",
    )

    def __init__(
        self,
        hf3fs_mount_point,
        entries,
        for_read=True,
        io_depth=0,
        priority=None,
        timeout=None,
        numa=-1,
        flags=0,
    ):
        self._ring = None
        mount = mount_path(hf3fs_mount_point)
        entries = integer("entries", entries, INT_MIN, INT_MAX)
        io_depth = integer("io_depth", io_depth, INT_MIN, INT_MAX)
        timeout = 0 if timeout is None else integer("timeout (milliseconds)", timeout, INT_MIN, INT_MAX)
        numa = integer("numa", numa, INT_MIN, INT_MAX)
        flags = integer("flags", flags, 0, U64_MAX)
        self._make = mount, entries, bool(for_read), io_depth, timeout, numa, flags
        self._numbers = itertools.count(1)
        self._in_flight = {}  # number -> slice
        self._early = collections.deque()  # slices collected by a wait that was interrupted
        self._of_thread = threading.local()
        self._ring = self._made()

    def _made(self):
        """A new ring in C, which this process uses."""
        mount, entries, for_read, io_depth, timeout, numa, flags = self._make
        ring = _Ring()
        ring.pid = os.getpid()
        error = _library.iorcreate4(ring, os.fsencode(mount), entries, for_read, io_depth, timeout, numa, flags)
        if error < 0:
            invalid = (
                f"a ring of {entries} entries, io_depth {io_depth}, timeout {timeout} ms is not possible: "
                "entries from 1 to 65536, io_depth <= entries, timeout >= 0"
            )
            raise registration_error(-error, mount, invalid)
        self._entries = _library.io_entries(ring)
        self._prep_io = _library.prepare_function()
        self._watch = Watch(mount)
        self._user = here[0]  # the process that uses the ring
        return ctypes.byref(ring)

    def alive(self):
        """Whether the daemon with which the ring was made is there. One that does not answer counts as there."""
        ring = self._alive()
        return self._watch.alive() if _library.iorprobe is None else _library.iorprobe(ring) != -errno.ENOTCONN

    def renew(self):
        """Makes the ring anew, with the daemon that is there now. Requests in flight are lost, waits end with an error."""
        self._alive()
        if self._user != here[0]:
            self._inherit()
        self._ring = self._made()
        self._in_flight.clear()
        self._early.clear()

    @property
    def entries(self):
        """The number of requests that can be in flight."""
        self._alive()
        return self._entries

    @staticmethod
    def size_for_entries(entries):
        """Bytes of shared memory that a ring needs."""
        return _library.ior_size(integer("entries", entries, INT_MIN, INT_MAX))

    def _alive(self):
        ring = self._ring
        if ring is None:
            raise OSError(errno.EINVAL, "the ring is destroyed")
        return ring

    def _inherit(self):
        """Takes the ring over from a parent that has ended. If both used it, their requests would mix."""
        if lives(self._user):
            raise OSError(errno.EBUSY, f"the ring belongs to process {self._user}, which is running; create one in each process")
        self._user = here[0]
        self._prep_io = _library.prepare_function()  # nobody here holds the lock of the parent's

    def prepare(self, iov, read, fd, off, userdata=None):
        """Queues one request for all bytes of iov, which may start at once."""
        ring = self._ring or self._alive()
        if self._user != here[0]:
            self._inherit()
        if type(off) is not int or not 0 <= off <= U64_MAX or type(fd) is not int or not INT_MIN <= fd <= INT_MAX:
            off = integer("off", off, 0, U64_MAX)
            fd = integer("fd", fd, INT_MIN, INT_MAX)
        if not isinstance(iov, iovec):
            raise TypeError(f"iov must be an iovec, not {type(iov).__name__}")
        # Everything that can fail before the call into C must fail before anything is stored.
        read = bool(read)
        root, at, size = iov._root, iov._at, iov._size
        before = iov._result, iov._userdata
        number = next(self._numbers)
        # Stored before the daemon can complete the request.
        iov._result = 0
        iov._userdata = userdata
        self._in_flight[number] = iov
        error = self._prep_io(ring, root, read, at, fd, off, size, number)
        if error < 0:
            self._in_flight.pop(number, None)
            iov._result, iov._userdata = before
            if error == -errno.EAGAIN:
                self._watch.look()  # the ring of a daemon that has ended stays full
            raise os_error(-error, says=_PREPARE_SAYS)
        return self

    def submit(self):
        """Wakes the daemon."""
        ring = self._ring or self._alive()
        if self._user != here[0]:
            self._inherit()
        error = _library.submit_ios(ring)
        if error < 0:
            raise os_error(-error)
        return self

    def wait(self, *, max_results=0, min_results=0, timeout=None):
        """The slices of completed requests, with result and userdata, in completion order.

        Returns at most max_results (or min_results, if that is more; one if both are 0), and at least
        min_results unless timeout passes first: seconds, a timedelta, or None for no limit. An exception
        such as KeyboardInterrupt loses nothing: the next wait returns what this one had collected. If the
        daemon has ended, a wait that would return nothing raises ENOTCONN within seconds.
        """
        ring = self._ring or self._alive()
        if self._user != here[0]:
            self._inherit()
        min_results = integer("min_results", min_results, INT_MIN, INT_MAX)
        limit = max(integer("max_results", max_results, INT_MIN, INT_MAX), min_results, 1)
        end = end_of(timeout)
        try:
            memory = self._of_thread.memory
        except AttributeError:
            memory = self._of_thread.memory = Completions(self._entries)
        while True:
            try:
                if memory.asked:
                    self._collect(memory, memory.asked)  # a wait of this thread was interrupted
                _move(self._early, memory.done, limit - len(memory.done))
                self._wait(ring, memory, limit, min_results, end)
            except BaseException:
                # Leave the slices to the next thread that waits; if another signal interrupts
                # this, they stay for this thread.
                self._collect(memory, memory.asked)
                _move(memory.done, self._early, len(memory.done))
                raise
            done = memory.done
            answer, rest = list(itertools.islice(done, limit)), collections.deque(itertools.islice(done, limit, None))
            # A signal handler may also have waited. None runs between the last two lines, except in
            # Python 3.9.
            if memory.done is done:
                memory.done = rest
                return answer

    def _wait(self, ring, memory, limit, min_results, end):
        while len(memory.done) < limit:
            have = len(memory.done)
            until = memory.set_until(end) if have < min_results else None
            memory.asked = asked = min(limit - have, memory.room)
            count = _library.wait_for_ios(ring, memory.address, asked, min_results - have, until)
            if count < 0:
                raise os_error(-count, says=_WAIT_SAYS)
            self._collect(memory, count)
            over = len(memory.done) >= min_results or (end is not None and time.monotonic() >= end)
            if over and memory.done:
                return
            if self._ring is not ring:
                raise OSError(errno.EINVAL, "the ring was destroyed or renewed during the wait")
            self._watch.look()
            if over:
                return

    def _collect(self, memory, count):
        """Moves requests from in flight to done. It may be interrupted anywhere and then repeated."""
        in_flight = self._in_flight
        numbers = []
        for _, _, result, number in memory.first(count):
            iov = in_flight.get(number)  # None: it was collected before
            if iov is not None:
                iov._result = result
                numbers.append(number)
        taken = map(in_flight.pop, numbers)
        _extend(memory.done, taken)
        memory.asked = 0

    async def wait_async(self, *, max_results=0, min_results=0, timeout=None):
        """wait() in a thread, for coroutines. Cancelling it loses nothing: the next wait returns what it had collected.

        The thread is one of the event loop's default executor, whose number bounds how many rings can be
        waited for at once.
        """
        wait = AsyncWait(self.wait, self._early, max_results, min_results, end_of(timeout))
        return await wait.result()

    def destroy(self):
        """Removes the ring. Requests in flight may still write into their buffers. A second call does nothing."""
        self._ring = None
        self._in_flight.clear()
        self._early.clear()

    def __reduce_ex__(self, protocol):
        raise TypeError("an ioring belongs to one process and cannot be pickled; create one in each process, or fork")
