# SPDX-License-Identifier: Apache-2.0
"""A real kv3fs daemon for tests, on a mount and a data directory of its own.

    with daemon.Daemon() as d:
        ...                      # d.mount, d.data
        d.kill()                 # as kill -9 does
        d.restart()              # over the same data, at the same place

KV3FS_BINARY names the program to run, by default bin/kv3fs of this tree. If no daemon can run,
the test is skipped, or fails with KV3FS_REQUIRE_MOUNTS=1.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

PATIENCE_SECONDS = 120

# Reads the process ids of the daemon, one after the other, from its stdin. If that ends before "done", the test was killed.
_JANITOR = """
last=
while read -r line; do
  [ "$line" = done ] && exit
  last=$line
done
[ -n "$last" ] && kill -TERM "$last" && kill -CONT "$last"
while [ -n "$last" ] && kill -0 "$last"; do sleep 0.1; done
umount -l "$1/mnt"
rm -rf --one-file-system "$1"
"""

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def not_tested(why):
    """Skips the test, or fails it if every test is required."""
    if os.environ.get("KV3FS_REQUIRE_MOUNTS") == "1":
        raise AssertionError(f"NOT TESTED, but KV3FS_REQUIRE_MOUNTS=1 requires it: {why}")
    raise unittest.SkipTest(f"NOT TESTED: {why}")


def binary():
    path = os.environ.get("KV3FS_BINARY") or str(_REPOSITORY / "bin" / "kv3fs")
    if not os.access(path, os.X_OK):
        not_tested(f"there is no {path}; `make build` builds it")
    return path


class Daemon:
    """One mount. Extra arguments are flags of `kv3fs serve`."""

    def __init__(self, *flags):
        self._flags = flags
        self._process = None
        self._reader = None
        self._log = []
        self._scratch = None
        self._janitor = None
        self.mount = None
        self.data = None

    def __enter__(self):
        program = binary()
        self._scratch = tempfile.mkdtemp(prefix="kv3fs-python-")
        self.mount = os.path.join(self._scratch, "mnt")
        self.data = os.path.join(self._scratch, "data")
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", _JANITOR, "janitor", self._scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._start(program)
        except OSError as error:
            self._clean_up()
            not_tested(str(error))
        return self

    def __exit__(self, *_):
        # The next daemon removes what a killed one leaves: its mount and its semaphores.
        if self._process is None:
            self._start(binary())
        self._stop()
        self._clean_up()

    def _clean_up(self):
        self._janitor.communicate(b"done\n", PATIENCE_SECONDS)
        shutil.rmtree(self._scratch)

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """Ends the daemon with SIGKILL; the mount stays and is dead."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def stalled(self):
        """Stops the daemon with SIGSTOP within the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # all its threads have stopped
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self):
        """Stops the daemon if it is running, and starts another in its place."""
        if self._process is not None:
            self._stop()
        self._start(binary())

    def _start(self, program):
        # In a session of its own: Ctrl-C does not reach it, and it is stopped in order.
        self._process = subprocess.Popen(
            [program, "serve", "--data", self.data, "--mount", self.mount, "--drain", "1s", *self._flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._janitor.stdin.write(f"{self.pid}\n".encode())
        self._janitor.stdin.flush()
        self._log = []
        serving = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(self._process.stderr, serving), daemon=True)
        self._reader.start()
        if not serving.wait(PATIENCE_SECONDS) or not any("msg=serving " in line for line in self._log):
            self._end(signal.SIGKILL)
            raise OSError("kv3fs does not serve: " + "".join(self._log).strip())

    def _read_log(self, stream, serving):
        """Sets serving when the daemon is ready, and when its log ends."""
        with stream:
            for line in stream:
                self._log.append(line)
                if "msg=serving " in line:
                    serving.set()
        serving.set()

    def _stop(self):
        status = self._end(signal.SIGTERM)
        if status not in (0, 3):  # 3: the test's process still had something of the mount open
            raise AssertionError(f"kv3fs ended with status {status}: " + "".join(self._log).strip())

    def _end(self, signal_number):
        process, self._process = self._process, None
        process.send_signal(signal_number)
        try:
            return process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_SECONDS)
            raise
        finally:
            self._reader.join(PATIENCE_SECONDS)
