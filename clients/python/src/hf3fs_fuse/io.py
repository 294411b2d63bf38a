# SPDX-License-Identifier: Apache-2.0
"""Reads and writes through shared memory that the daemon fills or empties.

    fd = os.open(path, os.O_RDWR)
    register_fd(fd)
    mount = extract_mount_point(path)
    shm = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    buffer = make_iovec(shm, mount)
    shm.unlink()
    ring = make_ioring(mount, 64)
    ring.prepare(buffer[0:4096], True, fd, 0)
    [done] = ring.submit().wait(min_results=1)
    done.result                                # bytes, or a negative errno
"""

import contextlib
import ctypes
import enum
import errno
import mmap
import multiprocessing.shared_memory  # SGLang's bench_client.py finds it imported
import os
import threading
import types
from uuid import uuid4

import hf3fs_py_usrbio as h3fio
from hf3fs_py_usrbio import _library, deregister_fd, extract_mount_point, force_fsync, hardlink, punch_hole, register_fd
from hf3fs_py_usrbio._arguments import INT64_MAX, U64_MAX, integer, mount_path
from hf3fs_py_usrbio._explain import file_error, opened, os_error, registration_error
from hf3fs_py_usrbio._iovec import note_original, registered
from hf3fs_py_usrbio._memory import exported, mapped_at
from hf3fs_py_usrbio._owner import may_remove

__all__ = [
    "IorPriority",
    "deregister_fd",
    "extract_mount_point",
    "force_fsync",
    "h3fio",
    "hardlink",
    "ioring",
    "iovec",
    "make_iovec",
    "make_ioring",
    "punch_hole",
    "read_file",
    "register_fd",
]


class IorPriority(enum.IntEnum):
    """Accepted by make_ioring() and, as in 3FS, without effect."""

    HIGH = -1
    NORMAL = 0
    LOW = 1


class _Registration:
    """A link under 3fs-virt/iovs. The buffer is registered as long as it exists."""

    _pid = None  # whose registration it is; None: nobody's
    _native = None  # a copy of the struct in C, which has the registration that add() made

    def __init__(self, link):
        self.link = link
        self._lock = threading.RLock()
        self._pid = os.getpid()  # last: from now on it can be removed

    def add(self, root, name):
        """Registers the buffer of root, whose shared memory has this name."""
        try:
            if _library.iovregister is None:  # 3FS's own library
                return _symlink(name, self.link)
            self._native = _library.copy_of(root)  # before C fills it: from then on an exception loses nothing
            error = _library.iovregister(ctypes.byref(self._native), os.fsencode(os.path.relpath(name, "/dev/shm")))
            if error < 0:
                raise os_error(-error)
        except OSError:
            self._pid = None  # there is nothing to remove
            raise

    def renew(self):
        """Returns a negative errno if that fails."""
        with self._lock:
            if self._pid is None or self._native is None:
                return -errno.EBADF if self._pid is None else -errno.EINVAL
            error = _library.iovrenew(ctypes.byref(self._native))
            if error >= 0:
                self._pid = os.getpid()
            return error

    def remove(self, _unlink=os.unlink, _destroy=_library.iovdestroy, _byref=ctypes.byref, _may_remove=may_remove):
        pid = self._pid
        if pid is None or not _may_remove(pid):
            return
        with self._lock:
            self._pid = None
            if self._native is not None:
                return _destroy(_byref(self._native))  # in C, where the wait for a daemon that is stopped has a bound
        while True:
            try:
                return _unlink(self.link)
            except InterruptedError:
                pass
            except OSError:
                # The daemon and its registrations are gone.
                return

    __del__ = remove


class iovec(h3fio.iovec):
    """A registered buffer, whole. The registration ends with the last of this object and its slices.

    link is the name under 3fs-virt/iovs. Within `with`, the registration ends with the block.
    """

    __slots__ = ("link",)

    def __new__(cls, iov, link):
        made = registered(iov, _Registration(link), iovec)
        made.link = link
        return made

    @property
    def iov(self):
        """The native iovec, as in 3FS's package: this object."""
        return self

    def renew(self):
        """Registers the buffer again, with the daemon that is there now. Its shared memory must still have its name."""
        error = self._root._obj.registration.renew()
        if error < 0:
            says = {
                errno.EINVAL: "this shared memory no longer has a name, or was not registered by make_iovec(); make a new one",
                errno.EBADF: "the registration has ended; make a new one",
            }
            raise os_error(-error, path=self.link, says=says)

    def unregister(self):
        """Removes the link. Requests that are prepared later fail; the memory stays."""
        self._root._obj.registration.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unregister()


class _Native:
    """A method of self.ior. It has no frame here, in which an exception could lose what wait() returns."""

    def __set_name__(self, _, name):
        self._name = name

    def __get__(self, ring, _=None):
        return getattr(h3fio.ioring if ring is None else ring.ior, self._name)


class ioring:
    """A ring; ior is the native one. Within `with`, the ring ends with the block."""

    def __init__(self, ior):
        self.ior = ior

    @staticmethod
    def size_for_entries(entries):
        return h3fio.ioring.size_for_entries(entries)

    prepare, submit, wait, wait_async = _Native(), _Native(), _Native(), _Native()
    alive, renew, destroy = _Native(), _Native(), _Native()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ior.destroy()

    def __reduce_ex__(self, protocol):
        return self.ior.__reduce_ex__(protocol)


def make_iovec(shm, hf3fs_mount_point, block_size=0, numa=-1):
    """Registers shm, a SharedMemory or any object with the same attributes name and buf.

    unlink() and close() may follow at once: the iovec has its own mapping. If shm is a number, the iovec
    has that many bytes of its own, which are zero.
    """
    if type(shm) is int:
        with _scratch(integer("the size of the iovec", shm, 1, INT64_MAX)) as own:
            return make_iovec(own, hf3fs_mount_point, block_size, numa)
    mount = mount_path(hf3fs_mount_point)
    if isinstance(block_size, bool):
        raise TypeError("block_size must be an int, not bool")
    block_size = integer("block_size", block_size, 0, U64_MAX)
    name = os.path.join("/dev/shm", shm.name.lstrip("/"))
    given = shm.buf
    if given is None:
        raise OSError(errno.EINVAL, "the shared memory is closed; call make_iovec() before close()", name)
    identity = str(uuid4())
    # All arguments are checked before the daemon is contacted.
    native = h3fio.iovec(_mapped_again(name, given, block_size), identity, mount, block_size, numa)
    note_original(native, given)
    link = os.path.join(mount, "3fs-virt", "iovs", identity + (f".b{block_size}" if block_size > 0 else ""))
    made = iovec(native, link)
    try:
        made._root._obj.registration.add(native._root, name)
    except OSError as error:
        raise registration_error(error.errno, mount, f"the daemon does not accept {name} as a buffer") from None
    return made


def _mapped_again(name, given, block_size):
    """A second mapping of given, which must be the shared memory of that name."""
    _, address, size = exported(given)
    try:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT, "this shared memory no longer has a name; call make_iovec() before unlink()", name
        ) from None
    try:
        there = os.fstat(fd)
        if mapped_at(address) not in (None, (there.st_ino, 0)):
            raise OSError(errno.EINVAL, "buf is not the shared memory of this name, or does not begin at its first byte", name)
        if there.st_size < size:
            text = f"{size} bytes are mapped, but the shared memory has only {there.st_size}; create a larger one"
            raise OSError(errno.EINVAL, text, name)
        if block_size > there.st_size:
            text = f"block_size is {block_size}, but the shared memory has only {there.st_size} bytes"
            raise OSError(errno.EINVAL, text, name)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def _symlink(target, link):
    """os.symlink, repeated after EINTR, which a daemon may return even after it has carried out the call."""
    interrupted = False
    while True:
        try:
            return os.symlink(target, link)
        except InterruptedError:
            interrupted = True
        except FileExistsError:
            if interrupted:
                return None
            raise


def make_ioring(
    hf3fs_mount_point,
    entries,
    for_read=True,
    io_depth=0,
    priority=None,
    timeout=None,
    numa=-1,
    flags=0,
):
    """A ring for reads or for writes. timeout: milliseconds that a partial batch may wait if io_depth < 0."""
    return ioring(h3fio.ioring(hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, numa, flags))


def read_file(fn, hf3fs_mount_point=None, block_size=1 << 30, off=0, priority=None, cb=None):
    """Returns the bytes of a file from off on, or None if cb takes them block by block.

    cb(memoryview, offset) may return the next offset as an int; any other true value ends the reading.
    The view may be kept, which keeps the memory of one block, but the next block overwrites its content.
    """
    with opened(fn, os.O_RDONLY) as fd:
        mount = extract_mount_point(fn) if hf3fs_mount_point is None else hf3fs_mount_point
        if mount is None:
            raise OSError(errno.EINVAL, "this file is not on a 3FS mount", fn)
        # A block that is larger than the file would waste space in /dev/shm.
        size = min(integer("block_size", block_size, 1, U64_MAX), max(os.fstat(fd).st_size, 1 << 20))
        register_fd(fd)
        try:
            with _scratch(size) as shm:
                buffer = make_iovec(shm, mount)
            ring = make_ioring(mount, 1, priority=priority)
            return _read_blocks(fd, buffer, size, ring, off, fn, cb)
        finally:
            deregister_fd(fd)


def _read_blocks(fd, buffer, size, ring, offset, name, cb):
    parts = []
    while True:
        block = buffer[0:size]
        ring.prepare(block, True, fd, offset)
        ring.submit().wait(min_results=1)
        if block.result < 0:
            raise file_error(-block.result, name)
        if block.result == 0:
            break
        # Not released: torch.frombuffer() uses the memory of a view without exporting it.
        view = memoryview(block)[: block.result]
        answer = parts.append(bytes(view)) if cb is None else cb(view, offset)
        if type(answer) is int:
            offset = answer
        elif answer or block.result < size:
            break
        else:
            offset += block.result
    return b"".join(parts) if cb is None else None


@contextlib.contextmanager
def _scratch(size):
    """Shared memory that has a name within the block and exists as long as it is used."""
    name = f"hf3fs-read-{os.getpid()}-{uuid4()}"
    path = os.path.join("/dev/shm", name)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            # Memory that is reserved now is no SIGBUS later.
            os.posix_fallocate(fd, 0, size)
            memory = mmap.mmap(fd, size)
        except OSError as error:
            raise os_error(error.errno, path=path) from None
        finally:
            os.close(fd)
        yield types.SimpleNamespace(name=name, buf=memory)
    finally:
        os.unlink(path)
