# SPDX-License-Identifier: Apache-2.0
import ctypes
import datetime
import os
from typing import Any, List, Optional, Sequence, Type, Union

from _typeshed import ReadableBuffer, WriteableBuffer

__version__: str

class iovec(ctypes.Array[ctypes.c_uint8]):
    _length_: int
    _type_: Type[ctypes.c_uint8]
    def __new__(
        cls, base: WriteableBuffer, id: str, hf3fs_mount_point: str, block_size: int = 0, numa: int = -1
    ) -> iovec: ...
    def __getitem__(self, where: slice) -> iovec: ...  # type: ignore[override]
    def __setitem__(self, where: slice, value: ReadableBuffer) -> None: ...  # type: ignore[override]
    def slice_by(self, buf: WriteableBuffer) -> iovec: ...
    @property
    def result(self) -> int: ...
    @property
    def userdata(self) -> Any: ...
    @property
    def base_off(self) -> int: ...

class ioring:
    def __init__(
        self,
        hf3fs_mount_point: str,
        entries: int,
        for_read: bool = True,
        io_depth: int = 0,
        priority: Optional[int] = None,
        timeout: Optional[int] = None,
        numa: int = -1,
        flags: int = 0,
    ) -> None: ...
    @property
    def entries(self) -> int: ...
    @staticmethod
    def size_for_entries(entries: int) -> int: ...
    def prepare(self, iov: iovec, read: bool, fd: int, off: int, userdata: Any = None) -> ioring: ...
    def submit(self) -> ioring: ...
    def wait(
        self,
        *,
        max_results: int = 0,
        min_results: int = 0,
        timeout: Union[datetime.timedelta, float, None] = None,
    ) -> List[iovec]: ...
    async def wait_async(
        self,
        *,
        max_results: int = 0,
        min_results: int = 0,
        timeout: Union[datetime.timedelta, float, None] = None,
    ) -> List[iovec]: ...
    def alive(self) -> bool: ...
    def renew(self) -> None: ...
    def destroy(self) -> None: ...

def deregister_fd(fd: int) -> None: ...
def extract_mount_point(path: Union[str, os.PathLike[str]]) -> Optional[str]: ...
def force_fsync(fd: int) -> int: ...
def hardlink(target: Union[str, os.PathLike[str]], link_name: Union[str, os.PathLike[str]]) -> None: ...
def punch_hole(
    filename: Union[str, os.PathLike[str], int, None] = None,
    start: Optional[Sequence[int]] = None,
    end: Optional[Sequence[int]] = None,
    flags: int = 0,
    *,
    fd: Optional[int] = None,
) -> None: ...
def register_fd(fd: int, flags: int = 0) -> None: ...
