# SPDX-License-Identifier: Apache-2.0
"""Waits of coroutines."""

import asyncio
import unittest

from mounted import PATIENCE_SECONDS, MountedTestCase


class TestAsync(MountedTestCase):
    def setUp(self):
        self.fd, self.iov, self.reads = self.registered(b"x" * 100), self.buffer(4096), self.ring(8)

    def prepare(self, count):
        for i in range(count):
            self.reads.prepare(self.iov[i : i + 1], True, self.fd, 0, i)
        self.reads.submit()

    def run_bounded(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, PATIENCE_SECONDS))

    def test_what_it_returns(self):
        async def main():
            self.prepare(8)
            first = await self.reads.wait_async(max_results=5, min_results=3)
            self.assertIn(len(first), (3, 4, 5))
            rest = await self.reads.wait_async(min_results=8 - len(first), timeout=float(PATIENCE_SECONDS))
            self.assertEqual(sorted(done.userdata for done in first + rest), list(range(8)))
            self.assertEqual([done.result for done in first + rest], [1] * 8)
            self.assertEqual(await self.reads.wait_async(min_results=1, timeout=0.01), [])
            self.assertEqual(await self.reads.wait_async(), [])

        self.run_bounded(main())

    def test_the_loop_runs_meanwhile_and_cancelling_loses_nothing(self):
        async def main():
            waiting = asyncio.ensure_future(self.reads.wait_async(min_results=4))
            await asyncio.sleep(0)  # it waits
            self.prepare(3)
            while self.reads.ior._in_flight:  # collected by the wait, which wants one more
                await asyncio.sleep(0.01)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            done = []
            while len(done) < 3:
                done += await self.reads.wait_async(min_results=1, timeout=0.1)
            self.assertEqual(sorted(d.userdata for d in done), [0, 1, 2])

        self.run_bounded(main())

    def test_a_closed_loop_ends_the_wait(self):
        process = self.script(
            """
import asyncio
import sys
from hf3fs_fuse import io
ring = io.make_ioring(sys.argv[1], 4)
loop = asyncio.new_event_loop()
waiting = loop.create_task(ring.wait_async(min_results=1))
waiting._log_destroy_pending = False
loop.run_until_complete(asyncio.sleep(0.2))
loop.close()
print("closed")
""",
            self.mount,
        )
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        # In Python 3.9 asyncio prints that its loop is closed.
        self.assertEqual((out, process.returncode), ("closed\n", 0), err)

    def test_errors_of_the_wait(self):
        async def main():
            for wrong in (1.5, "1"):
                with self.assertRaises(TypeError):
                    await self.reads.wait_async(min_results=wrong)
            waiting = asyncio.ensure_future(self.reads.wait_async(min_results=1))
            await asyncio.sleep(0)
            self.reads.destroy()
            with self.assertRaisesRegex(OSError, "destroyed"):
                await waiting

        self.run_bounded(main())

    def test_many_rings_at_once(self):
        async def main():
            rings = [self.ring(1) for _ in range(40)]

            async def read(ring, i):
                ring.prepare(self.iov[i : i + 1], True, self.fd, 0, i)
                [done] = await ring.submit().wait_async(min_results=1)
                return done.userdata

            self.assertEqual(await asyncio.gather(*(read(ring, i) for i, ring in enumerate(rings))), list(range(40)))

        self.run_bounded(main())


if __name__ == "__main__":
    unittest.main()
