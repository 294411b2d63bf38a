# SPDX-License-Identifier: Apache-2.0
"""What a wait in C needs: space for completions, and a deadline."""

import collections
import ctypes
import datetime
import math
import numbers
import struct
import time

from ._library import Timespec

# A wait in C does not notice Ctrl-C, so it never waits longer than this at once.
_SLICE_SECONDS = 0.1

# A thread that waits takes at most this many at once: its space does not grow with the ring.
_MOST = 4096

_CQE = struct.Struct("=iiqQ")  # as _library.Cqe


class Completions:
    """Space for the completions of a ring, used by one thread."""

    __slots__ = ("address", "room", "asked", "done", "_view", "_until", "_until_ref")

    def __init__(self, entries):
        self.room = min(entries, _MOST)
        self._view = memoryview(bytearray(self.room * _CQE.size))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))
        self.asked = 0  # how many completions C may have stored that are not collected yet
        self.done = collections.deque()  # collected slices
        self._until = Timespec()
        self._until_ref = ctypes.byref(self._until)

    def first(self, count):
        """Yields (index, reserved, result, userdata) of the first count completions."""
        return _CQE.iter_unpack(self._view[: count * _CQE.size])

    def set_until(self, end):
        """Sets the absolute time at which C returns: end, or earlier so that Python can handle signals."""
        seconds = _SLICE_SECONDS if end is None else max(0.0, min(_SLICE_SECONDS, end - time.monotonic()))
        fraction, whole = math.modf(time.time() + seconds)
        self._until.tv_sec = int(whole)
        self._until.tv_nsec = int(fraction * 1e9)
        return self._until_ref


def end_of(timeout):
    """The monotonic time at which timeout has passed; None: never."""
    if timeout is None:
        return None
    if isinstance(timeout, datetime.timedelta):
        timeout = timeout.total_seconds()
    elif not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout is seconds or a timedelta, not {type(timeout).__name__}")
    try:
        timeout = float(timeout)
    except OverflowError:
        raise ValueError("timeout is too large; None waits forever") from None
    if math.isnan(timeout):
        raise ValueError("timeout is not a number")
    return None if timeout == math.inf else time.monotonic() + timeout
