# SPDX-License-Identifier: Apache-2.0
"""The Python client beside the C library: the same requests through the same kind of ring.

Both read the same file, at the same offsets, into the same memory, and take turns run by run: a ratio
between figures of different minutes says little. Each is judged by the median of its runs.
"""

import argparse
import array
import contextlib
import mmap
import os
import pathlib
import platform
import random
import sys
import tempfile
import unittest

import report
from contender import Contender

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src"
C_BUILD = HERE.parents[1] / "c" / "build"

LARGE_BYTES, LARGE_DEPTH = 1 << 20, 32
SMALL_BYTES, SMALL_DEPTH = 4 << 10, 64
COST_BATCHES = 100  # in one run
OFFSETS = 1 << 14


def options():
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__.splitlines()[0])
    parser.add_argument("--scratch", default="/dev/shm", help="where a daemon is started (default %(default)s)")
    parser.add_argument("--mount", help="measure a running daemon instead")
    parser.add_argument("--data", help="its data directory")
    parser.add_argument("--io", default="buffered", help="the started daemon's --io (default %(default)s)")
    parser.add_argument("--runs", type=int, default=7, help="of each contender (default %(default)s)")
    parser.add_argument("--run-seconds", type=float, default=0.5, help="how long each takes (default %(default)s)")
    parser.add_argument("--file-mib", type=int, default=256, help="the file's size (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="for a program instead of a person")
    args = parser.parse_args()
    if (args.mount is None) != (args.data is None):
        parser.error("give both --mount and --data of a running daemon, or neither to have one started")
    if args.runs < 1 or args.run_seconds <= 0 or args.file_mib < 1:
        parser.error("--runs, --run-seconds and --file-mib begin at 1, above 0 and at 1")
    return args


@contextlib.contextmanager
def served(args):
    """(mount, data) of the daemon that is measured."""
    if args.mount:
        yield args.mount, args.data
        return
    sys.path.insert(0, str(HERE.parent / "tests"))
    import daemon

    os.makedirs(args.scratch, exist_ok=True)
    tempfile.tempdir = args.scratch
    with daemon.Daemon("--io", args.io) as d:
        yield d.mount, d.data


@contextlib.contextmanager
def test_file(mount, data, size):
    """A file in which all blocks differ; its names on the mount and in the data directory."""
    name = f"kv3fs-bench-{os.getpid()}"
    path = os.path.join(data, name)
    try:
        with open(path, "xb") as file:
            for _ in range(size >> 20):
                file.write(random.randbytes(1 << 20))
            os.fsync(file.fileno())  # otherwise writeback would disturb the first runs
        if not os.path.exists(os.path.join(mount, name)):
            raise OSError(f"{mount} does not show {path}: --data must be the data directory of the daemon at --mount")
        yield os.path.join(mount, name), path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class Case:
    """Both contenders for requests of one size."""

    def __init__(self, mount, file, size, depth, resources):
        self.size, self.depth = size, depth
        on_mount, self._data_path = file
        blocks = os.path.getsize(self._data_path) // size
        numbers = array.array("Q", (random.randrange(blocks) * size for _ in range(OFFSETS)))
        offsets = resources.enter_context(tempfile.NamedTemporaryFile())
        offsets.write(numbers.tobytes())
        offsets.flush()
        shm = f"kv3fs-bench-{os.getpid()}-{size}"
        arguments = [mount, on_mount, shm, str(size), str(depth), offsets.name]
        library = {"HF3FS_USRBIO_LIBRARY": str(C_BUILD / "libhf3fs_api_shared.so"), "PYTHONPATH": str(PACKAGE)}
        python = Contender("Python", [sys.executable, str(HERE / "ringloop.py"), *arguments], {**os.environ, **library})
        resources.callback(python.close)
        python.answer()  # the memory is there
        c = Contender("C", [str(C_BUILD / "usrbio_bench"), *arguments])
        resources.callback(c.close)
        self.contenders = {"c": c, "python": python}
        memory = os.open(f"/dev/shm/{shm}", os.O_RDWR)
        self._memory = mmap.mmap(memory, size * depth)
        os.close(memory)

    def run(self, program, command, figures, turn):
        """Its figures, after what it read has been checked."""
        self._memory[:] = bytes(len(self._memory))
        values, held = self.contenders[program].tell(command, figures)
        slot = turn % self.depth
        with open(self._data_path, "rb") as file:
            expected = os.pread(file.fileno(), self.size, held[slot])
        if self._memory[slot * self.size : (slot + 1) * self.size] != expected:
            raise OSError(f"{program}: wrong bytes in slot {slot}, from offset {held[slot]}")
        return values

    def in_turns(self, command, figures, runs, progress):
        """Each contender's figures of each run. Another contender begins each round; round 0 is the warm-up."""
        rows = {program: [] for program in self.contenders}
        for turn in range(runs + 1):
            order = list(self.contenders)[:: 1 if turn % 2 else -1]
            for program in order:
                values = self.run(program, command, figures[program], turn)
                if turn:
                    rows[program].append(values)
            progress(turn, runs)
        return rows

    def rate(self, seconds, runs, progress):
        """Requests a second."""
        rows = self.in_turns(f"rate {seconds}", {"c": 2, "python": 2}, runs, progress)
        return {program: [requests / took for requests, took in values] for program, values in rows.items()}

    def cost(self, runs, progress):
        """Microseconds for one request, by operation; medians of the runs."""
        names = {"c": ["prepare", "reap"], "python": ["prepare", "reap", "slice"]}
        figures = {program: len(names[program]) for program in names}
        rows = self.in_turns(f"cost {COST_BATCHES}", figures, runs, progress)
        return {
            program: {name: report.Spread(column).median / 1000 for name, column in zip(names[program], zip(*values))}
            for program, values in rows.items()
        }


def measure(args, mount, data):
    def progress_of(what):
        def progress(run, runs):
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{what}: run {run} of {runs}\x1b[K" + ("\n" if run == runs else ""))

        return progress

    result = {
        "data": data,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "runs": args.runs,
        "run_seconds": args.run_seconds,
        "file_bytes": args.file_mib << 20,
    }
    with test_file(mount, data, args.file_mib << 20) as file:
        for name, size, depth in (("large", LARGE_BYTES, LARGE_DEPTH), ("small", SMALL_BYTES, SMALL_DEPTH)):
            with contextlib.ExitStack() as resources:
                case = Case(mount, file, size, depth, resources)
                rate = case.rate(args.run_seconds, args.runs, progress_of(f"{size >> 10} KiB"))
                result[name] = {"size": size, "depth": depth, "rate": rate, "python_to_c": report.ratio(rate)}
                if name == "small":
                    result["cost"] = case.cost(args.runs, progress_of("cost"))
    return result


def main():
    args = options()
    try:
        with served(args) as (mount, data):
            result = measure(args, mount, data)
    except (OSError, AssertionError, unittest.SkipTest) as error:  # the latter two come from the daemon
        sys.exit(f"bench.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(report.as_json(result) if args.json else report.as_table(result))


if __name__ == "__main__":
    main()
