# SPDX-License-Identifier: Apache-2.0
"""Addresses of buffers."""

import ctypes


def exported(buffer):
    """An object that keeps buffer in place, its address and its length."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        raise ValueError("the buffer is empty")
    # TypeError if it is read-only or not contiguous.
    memory = ctypes.c_char.from_buffer(view)
    return memory, ctypes.addressof(memory), view.nbytes


def mapped_at(address):
    """Inode and offset of the file byte that is mapped at address; None if the kernel does not say."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, _, offset, _, inode, *_ = line.split(None, 5)
            start, end = (int(bound, 16) for bound in span.split(b"-"))
            if start <= address < end:
                return int(inode), int(offset, 16) + address - start
    return None
