# SPDX-License-Identifier: Apache-2.0
"""Where buffers are."""

import ctypes


def exported(buffer):
    """What keeps buffer where it is, its address and its length."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        raise ValueError("the buffer is empty")
    # TypeError for what is read-only or not in one piece.
    memory = ctypes.c_char.from_buffer(view)
    return memory, ctypes.addressof(memory), view.nbytes


def mapped_at(address):
    """Inode and offset of the file byte that is mapped at address; None if the kernel does not tell."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, _, offset, _, inode, *_ = line.split(None, 5)
            start, end = (int(bound, 16) for bound in span.split(b"-"))
            if start <= address < end:
                return int(inode), int(offset, 16) + address - start
    return None
