# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libhf3fs_api_shared.so, and declares its structs and functions."""

import ctypes
import os
import sys
import threading
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

SONAME = "libhf3fs_api_shared.so"
OVERRIDE = "HF3FS_USRBIO_LIBRARY"


class Iov(ctypes.Structure):
    """struct hf3fs_iov. memory keeps the buffer exported and so mapped; original(): see note_original.

    registration keeps the buffer's link.
    """

    memory = registration = None
    original = staticmethod(lambda: None)

    _fields_ = [
        ("base", c_void_p),
        ("iovh", c_void_p),
        ("id", c_char * 16),
        ("mount_point", c_char * 256),
        ("size", c_size_t),
        ("block_size", c_size_t),
        ("numa", c_int),
    ]


def copy_of(iov):
    """A copy of the struct to which iov points, for iovdestroy(). It keeps the buffer mapped, but is not part of it."""
    copy = Iov.from_buffer_copy(iov._obj)
    copy.memory = iov._obj.memory
    return copy


class Ior(ctypes.Structure):
    """struct hf3fs_ior."""

    _fields_ = [
        ("iov", Iov),
        ("iorh", c_void_p),
        ("mount_point", c_char * 256),
        ("for_read", c_bool),
        ("io_depth", c_int),
        ("priority", c_int),
        ("timeout", c_int),
        ("flags", c_uint64),
    ]


class Cqe(ctypes.Structure):
    """struct hf3fs_cqe."""

    _fields_ = [("index", c_int32), ("reserved", c_int32), ("result", c_int64), ("userdata", c_void_p)]


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = [("tv_sec", c_int64), ("tv_nsec", c_int64)]


def _path():
    """The library to load: the user's choice, else the wheel's, else what the loader finds."""
    override = os.environ.get(OVERRIDE)
    if override:
        return override
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
    return packaged if os.path.exists(packaged) else SONAME


def _load():
    path = _path()
    try:
        # Two views of one library. Calls through the first release the GIL. Calls through the second
        # are so short that they keep it, and so run one at a time.
        return ctypes.CDLL(path), ctypes.PyDLL(path)
    except OSError as error:
        source = f"named by ${OVERRIDE}" if path == os.environ.get(OVERRIDE) else f"${OVERRIDE} is not set"
        here = os.path.dirname(os.path.abspath(__file__))
        raise ImportError(
            f"cannot load {path} ({source}; a wheel has {SONAME} in {here}; without a wheel, the system's loader "
            f"must find it): {error}. Install the hf3fs_py_usrbio wheel, or the C library, "
            f"or set {OVERRIDE} to the library's path.",
            path=path,
        ) from None


def _declare(library, name, result, *arguments):
    try:
        function = getattr(library, "hf3fs_" + name)
    except AttributeError:
        raise ImportError(
            f"{library._name} has no hf3fs_{name}, so it is not a USRBIO library; "
            f"set {OVERRIDE} to the path of {SONAME}.",
            path=library._name,
        ) from None
    function.restype = result
    function.argtypes = arguments
    return function


def _optional(library, name, result, *arguments):
    """A function that 3FS's own library does not have; None there."""
    return _declare(library, name, result, *arguments) if hasattr(library, "hf3fs_" + name) else None


def prepare_function():
    """prep_io for one ring, of which one thread at a time may queue a request. Without a GIL, a lock sees to that."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return prep_io
    lock = threading.Lock()

    def serialised(*arguments):
        with lock:
            return prep_io(*arguments)

    return serialised


_waiting, _short = _load()

extract_mount_point = _declare(_waiting, "extract_mount_point", c_int, c_char_p, c_int, c_char_p)
reg_fd = _declare(_waiting, "reg_fd", c_int, c_int, c_uint64)
dereg_fd = _declare(_waiting, "dereg_fd", None, c_int)
hardlink = _declare(_waiting, "hardlink", c_int, c_char_p, c_char_p)
punchhole = _declare(_waiting, "punchhole", c_int, c_int, c_int, c_void_p, c_void_p, c_size_t)
iovwrap = _declare(
    _short, "iovwrap", c_int, POINTER(Iov), c_void_p, c_char_p, c_char_p, c_size_t, c_size_t, c_int
)
ior_size = _declare(_short, "ior_size", c_size_t, c_int)
iorcreate4 = _declare(
    _waiting, "iorcreate4", c_int, POINTER(Ior), c_char_p, c_int, c_bool, c_int, c_int, c_int, c_uint64
)
iordestroy = _declare(_waiting, "iordestroy", None, POINTER(Ior))
io_entries = _declare(_short, "io_entries", c_int, POINTER(Ior))
prep_io = _declare(
    _short, "prep_io", c_int, POINTER(Ior), POINTER(Iov), c_bool, c_void_p, c_int, c_size_t, c_uint64, c_void_p
)
submit_ios = _declare(_short, "submit_ios", c_int, POINTER(Ior))
wait_for_ios = _declare(
    _waiting, "wait_for_ios", c_int, POINTER(Ior), c_void_p, c_int, c_int, POINTER(Timespec)
)
iovregister = _optional(_waiting, "iovregister", c_int, POINTER(Iov), c_char_p)
iovdestroy = _declare(_waiting, "iovdestroy", None, POINTER(Iov))
iovrenew = _optional(_waiting, "iovrenew", c_int, POINTER(Iov))
iorprobe = _optional(_waiting, "iorprobe", c_int, POINTER(Ior))
