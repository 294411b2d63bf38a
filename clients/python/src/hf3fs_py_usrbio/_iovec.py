# SPDX-License-Identifier: Apache-2.0
"""Data buffers and their slices."""

import ctypes
import functools
import operator
import re
import weakref

from . import _library
from ._arguments import INT_MAX, INT_MIN, U64_MAX, integer, mount_path
from ._explain import os_error
from ._memory import exported

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class _Byte(ctypes.Union):
    # The memoryview of a union's array has format 'B', which it can index and torch accepts; that of
    # an array of c_uint8 has '<B'.
    _fields_ = [("value", ctypes.c_uint8)]


class iovec(ctypes.Array):
    """Shared memory that is registered with the daemon under id, or a slice of it.

    A one-dimensional buffer of writable bytes: memoryview(), numpy.frombuffer() and torch.frombuffer()
    take it. Slices share the memory, and keep it mapped as long as they live.
    """

    # In pure Python only a ctypes array has a buffer of any length at any address, and its class
    # fixes the length: see _class_for.
    _type_ = _Byte
    _length_ = 0
    # _root: the registered buffer, for C. _at, _size: address and size. _offset: of _at in the root.
    __slots__ = ("_root", "_at", "_size", "_offset", "_result", "_userdata", "__weakref__")

    def __new__(cls, base, id, hf3fs_mount_point, block_size=0, numa=-1):
        if not isinstance(id, str):
            raise TypeError(f"id must be a str, not {type(id).__name__}")
        if not _UUID.fullmatch(id):
            raise ValueError(f"{id!r} is not a UUID of the form 8-4-4-4-12")
        mount = mount_path(hf3fs_mount_point)
        block_size = integer("block_size", block_size, 0, U64_MAX)
        numa = integer("numa", numa, INT_MIN, INT_MAX)
        memory, address, size = exported(base)
        root = _library.Iov()
        root.memory = memory
        error = _library.iovwrap(
            root, address, bytes.fromhex(id.replace("-", "")), mount.encode(), size, block_size, numa
        )
        if error < 0:
            raise os_error(-error, path=mount)
        return _slice(ctypes.byref(root), address, size, 0)

    def __init__(self, *_, **__):
        pass

    def __init_subclass__(cls):
        if cls.__module__ not in (__name__, "hf3fs_fuse.io"):
            raise TypeError("iovec cannot be a base class")

    def __getitem__(self, where):
        start, stop = self._bounds(where)
        return _slice(self._root, self._at + start, stop - start, self._offset + start)

    def __setitem__(self, where, value):
        start, stop = self._bounds(where)
        memoryview(self)[start:stop] = memoryview(value).cast("B")

    def _bounds(self, where):
        if not isinstance(where, slice):
            raise TypeError(f"an iovec is indexed by slices, not by {type(where).__name__}; for single bytes, use memoryview(iovec)")
        start, stop, step = where.indices(self._size)
        if step != 1:
            raise ValueError(f"the step of an iovec's slice must be 1, not {step}")
        return start, max(start, stop)

    def slice_by(self, buf):
        """The part of this iovec that is the memory of buf, a writable buffer."""
        _, address, size = exported(buf)
        for base in (self._at, _original_address(self._root._obj) + self._offset):
            start = address - base
            if 0 <= start <= self._size - size:
                return self[start : start + size]
        raise IndexError(f"the buffer of {size} bytes is not within this iovec of {self._size} bytes")

    # The ring stores these in a slice; programs read them.
    result = property(operator.attrgetter("_result"), doc="Bytes transferred, or a negative errno.")
    userdata = property(operator.attrgetter("_userdata"), doc="What was given to prepare().")
    base_off = property(operator.attrgetter("_offset"), doc="The first byte's offset in the registered buffer.")

    def __reduce_ex__(self, protocol):
        raise TypeError("an iovec is memory of this process and cannot be pickled; create one in each process, or fork")

    def __repr__(self):
        return f"<iovec of {self._size} bytes at {self._offset}, result {self._result}>"


def registered(iov, registration, cls):
    """All of iov as an object of cls. registration lives as long as any part of the buffer."""
    iov._root._obj.registration = registration
    return _slice(iov._root, iov._at, iov._size, iov._offset, cls)


def note_original(iov, buffer):
    """Notes that iov is another mapping of buffer, so that slice_by() also accepts parts of buffer. buffer may be freed."""
    iov._root._obj.original = weakref.ref(buffer)


def _original_address(root):
    buffer = root.original()
    try:
        return root.base if buffer is None else exported(buffer)[1]
    except ValueError:  # released
        return root.base


@functools.lru_cache(maxsize=1024)
def _class_for(size, cls):
    # Creating a class takes a few microseconds, and programs use few sizes.
    return type("iovec", (cls,), {"__module__": cls.__module__, "__slots__": (), "_length_": size})


def _slice(root, address, size, offset, cls=iovec):
    made = _class_for(size, cls).from_address(address)
    made._root = root
    made._at = address
    made._size = size
    made._offset = offset
    made._result = 0
    made._userdata = None
    return made
