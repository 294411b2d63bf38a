# SPDX-License-Identifier: Apache-2.0
"""Which process may take a registration away, and when it must not.

A forked child has copies of the parent's objects, whose finalisers must leave the parent's links
alone. The other way round a child may go on with what it inherited after the parent has ended, so an
interpreter that has forked leaves its links at exit; the daemon removes them with the last process.
"""

import os
import sys

_forked = []


_PF_EXITING = 4  # linux/sched.h

# getpid() is a system call, and this is asked with every request.
here = [os.getpid()]


def _note_fork():
    _forked[:] = [os.getpid()]


def _note_birth():
    here[:] = [os.getpid()]


os.register_at_fork(after_in_parent=_note_fork, after_in_child=_note_birth)


def lives(pid):
    """Whether the process runs. Ending begins with this flag, before its pipes tell; a zombie keeps it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            flags = stat.read().rpartition(b") ")[2].split()[6]
    except OSError:
        return False
    return not int(flags) & _PF_EXITING


def may_remove(pid, _getpid=os.getpid, _finalizing=sys.is_finalizing, _forked=_forked):
    """For finalisers of what process pid has made. The defaults are there when modules are not any more."""
    if pid != _getpid():
        return False
    return not (_finalizing() and pid in _forked)
