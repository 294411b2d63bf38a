# SPDX-License-Identifier: Apache-2.0
import datetime
import enum
import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Callable, List, Optional, Protocol, Union

import hf3fs_py_usrbio as h3fio
from _typeshed import WriteableBuffer
from hf3fs_py_usrbio import deregister_fd as deregister_fd
from hf3fs_py_usrbio import extract_mount_point as extract_mount_point
from hf3fs_py_usrbio import force_fsync as force_fsync
from hf3fs_py_usrbio import hardlink as hardlink
from hf3fs_py_usrbio import punch_hole as punch_hole
from hf3fs_py_usrbio import register_fd as register_fd

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
    HIGH = -1
    NORMAL = 0
    LOW = 1

class iovec(h3fio.iovec):
    link: str
    def __new__(cls, iov: h3fio.iovec, link: str) -> iovec: ...
    @property
    def iov(self) -> iovec: ...
    def renew(self) -> None: ...
    def unregister(self) -> None: ...
    def __enter__(self) -> iovec: ...
    def __exit__(self, *_: object) -> None: ...

class ioring:
    ior: h3fio.ioring
    def __init__(self, ior: h3fio.ioring) -> None: ...
    @staticmethod
    def size_for_entries(entries: int) -> int: ...
    def prepare(self, iov: h3fio.iovec, read: bool, fd: int, off: int, userdata: Any = None) -> h3fio.ioring: ...
    def submit(self) -> h3fio.ioring: ...
    def wait(
        self,
        *,
        max_results: int = 0,
        min_results: int = 0,
        timeout: Union[datetime.timedelta, float, None] = None,
    ) -> List[h3fio.iovec]: ...
    async def wait_async(
        self,
        *,
        max_results: int = 0,
        min_results: int = 0,
        timeout: Union[datetime.timedelta, float, None] = None,
    ) -> List[h3fio.iovec]: ...
    def alive(self) -> bool: ...
    def renew(self) -> None: ...
    def destroy(self) -> None: ...
    def __enter__(self) -> ioring: ...
    def __exit__(self, *_: object) -> None: ...

class _Memory(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def buf(self) -> WriteableBuffer: ...

def make_iovec(shm: Union[SharedMemory, _Memory, int], hf3fs_mount_point: str, block_size: int = 0, numa: int = -1) -> iovec: ...
def make_ioring(
    hf3fs_mount_point: str,
    entries: int,
    for_read: bool = True,
    io_depth: int = 0,
    priority: Union[IorPriority, int, None] = None,
    timeout: Optional[int] = None,
    numa: int = -1,
    flags: int = 0,
) -> ioring: ...
def read_file(
    fn: Union[str, os.PathLike[str]],
    hf3fs_mount_point: Optional[str] = None,
    block_size: int = 1 << 30,
    off: int = 0,
    priority: Union[IorPriority, int, None] = None,
    cb: Optional[Callable[[memoryview, int], object]] = None,
) -> Optional[bytes]: ...
