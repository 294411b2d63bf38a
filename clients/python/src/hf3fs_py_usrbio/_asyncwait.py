# SPDX-License-Identifier: Apache-2.0
"""A wait in a thread, for the coroutines of an event loop."""

import asyncio
import threading
import time

# A thread does not notice that its coroutine was cancelled, so it never waits longer than this at once.
_SLICE_SECONDS = 0.1


class AsyncWait:
    """One wait. What nobody takes goes back to early, from which the next wait takes first."""

    def __init__(self, wait, early, max_results, min_results, end):
        self._wait = wait
        self._early = early
        self._most = max(max_results, min_results, 1)
        self._least = min_results
        self._end = end
        self._lock = threading.Lock()
        self._done = []
        self._taken = False  # nobody wants the slices, or somebody has them
        self._loop = None

    async def result(self):
        self._loop = asyncio.get_running_loop()
        try:
            self._collect(0)
            if len(self._done) < self._least and not self._over():
                await self._loop.run_in_executor(None, self._run)
            with self._lock:
                self._taken = True
                return self._done
        except BaseException:
            with self._lock:
                self._taken = True
                self._give_back()
            raise

    def _run(self):
        while len(self._done) < self._least and not self._over():
            left = _SLICE_SECONDS if self._end is None else min(_SLICE_SECONDS, self._end - time.monotonic())
            self._collect(max(0, left))
            if self._loop.is_closed():  # nobody will come for them, and the interpreter waits for this thread
                with self._lock:
                    self._taken = True
                    self._give_back()

    def _over(self):
        return self._taken or (self._end is not None and time.monotonic() >= self._end)

    def _collect(self, seconds):
        have = len(self._done)
        found = self._wait(max_results=self._most - have, min_results=max(0, self._least - have), timeout=seconds)
        with self._lock:
            self._done += found
            if self._taken:
                self._give_back()

    def _give_back(self):
        self._early.extendleft(reversed(self._done))
        self._done = []
