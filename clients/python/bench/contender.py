# SPDX-License-Identifier: Apache-2.0
"""A program that reads the file on command and reports its figures."""

import selectors
import subprocess

PATIENCE_SECONDS = 60


class Contender:
    def __init__(self, name, command, env=None):
        self.name = name
        # In another process group: Ctrl-C goes to the benchmark, which ends its contenders in order.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
        )

    def answer(self):
        """The next line that it prints, split into words."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_SECONDS):
                raise OSError(f"{self.name}: no answer within {PATIENCE_SECONDS} s")
        words = self._process.stdout.readline().split()
        if not words:
            raise OSError(f"{self.name}: ended with status {self._process.wait(PATIENCE_SECONDS)}")
        return words

    def tell(self, command, figures):
        """Its figures for a command, and the offset in the file that each slot of the memory now holds."""
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() reports why
        words = self.answer()
        return [float(word) for word in words[:figures]], [int(word) for word in words[figures:]]

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
        self._process.stdout.close()
