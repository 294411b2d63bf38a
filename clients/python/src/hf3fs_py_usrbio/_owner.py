# SPDX-License-Identifier: Apache-2.0
"""Which process may remove a registration, and when.

A forked child has copies of the parent's objects; their finalisers must not remove the parent's links.
A child may also use what it inherited after the parent has ended. So an interpreter that has forked
leaves its links at exit, and the daemon removes them when the last process ends.
"""

import os
import sys

_forked = []


_PF_EXITING = 4  # linux/sched.h

# getpid() is a system call, and every request needs the process id.
here = [os.getpid()]


def _note_fork():
    _forked[:] = [os.getpid()]


def _note_birth():
    here[:] = [os.getpid()]


os.register_at_fork(after_in_parent=_note_fork, after_in_child=_note_birth)


def lives(pid):
    """Whether the process is running. The kernel sets PF_EXITING before it closes pipes; a zombie keeps it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            flags = stat.read().rpartition(b") ")[2].split()[6]
    except OSError:
        return False
    return not int(flags) & _PF_EXITING


def may_remove(pid, _getpid=os.getpid, _finalizing=sys.is_finalizing, _forked=_forked):
    """For finalisers of objects made by process pid. The defaults still exist when modules are gone."""
    if pid != _getpid():
        return False
    return not (_finalizing() and pid in _forked)
