# SPDX-License-Identifier: Apache-2.0
"""What the tests' own daemon leaves behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import daemon

KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
import daemon
with daemon.Daemon() as d:
    d.restart()
    print(d.pid, d.mount, flush=True)
    sys.stdin.read()
"""


class TestDaemon(unittest.TestCase):
    def test_a_killed_test_leaves_nothing(self):
        daemon.binary()
        command = [sys.executable, "-W", "error", "-c", KILLED, os.path.dirname(os.path.abspath(__file__))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
            said = test.stdout.readline()
            if not said:
                daemon.not_tested("no daemon runs here")
            pid, mount = said.split()
            test.send_signal(signal.SIGKILL)
        end = time.monotonic() + daemon.PATIENCE_SECONDS
        scratch, process = pathlib.Path(mount).parent, pathlib.Path("/proc", pid)
        while (scratch.exists() or process.exists()) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual((scratch.exists(), process.exists()), (False, False))


if __name__ == "__main__":
    unittest.main()
