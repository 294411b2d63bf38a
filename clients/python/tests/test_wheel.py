# SPDX-License-Identifier: Apache-2.0
"""The wheel: its content, and that it works without anything else installed."""

import base64
import csv
import hashlib
import io
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest
import zipfile

import daemon
from mounted import MountedTestCase

PYTHON_ROOM = pathlib.Path(__file__).resolve().parents[1]
BUILD_SECONDS = 120


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


class TestWheel(MountedTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.wheel = run(sys.executable, PYTHON_ROOM / "backend.py", cls.scratch).strip()

    def test_contents(self):
        with zipfile.ZipFile(self.wheel) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        for package in ("hf3fs_fuse", "hf3fs_py_usrbio"):
            for path in (PYTHON_ROOM / "src" / package).iterdir():
                if path.is_file():
                    self.assertEqual(files[f"{package}/{path.name}"], path.read_bytes())
        self.assertIn(b"\x7fELF", files["hf3fs_py_usrbio/libhf3fs_api_shared.so"])
        [record] = [name for name in files if name.endswith("/RECORD")]
        for name, digest, size in csv.reader(io.StringIO(files[record].decode())):
            if name != record:
                good = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, int(size)), ("sha256=" + good, len(files[name])))

    def test_tag(self):
        name = os.path.basename(self.wheel)
        self.assertRegex(name, rf"-py3-none-manylinux_2_\d+_{platform.machine()}\.whl$")
        # The library needs no newer glibc than the name says.
        newest = tuple(int(n) for n in name.split("manylinux_")[1].split("_")[:2])
        running = tuple(int(n) for n in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
        self.assertLessEqual(newest, running)

    def test_same_bytes_again(self):
        again = run(sys.executable, PYTHON_ROOM / "backend.py", self.scratch / "again").strip()
        self.assertEqual(pathlib.Path(again).read_bytes(), pathlib.Path(self.wheel).read_bytes())

    def test_installed_in_an_empty_environment(self):
        place = self.scratch / "venv"
        try:
            run(sys.executable, "-m", "venv", place)
        except AssertionError as error:
            daemon.not_tested(f"no virtual environment can be made: {error}")
        kept = ("PATH", "HOME", "LANG", "TMPDIR")
        env = {name: value for name, value in os.environ.items() if name in kept}
        run(place / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", "--no-cache-dir", self.wheel, env=env)
        said = run(
            place / "bin" / "python",
            "-c",
            "import sys, hf3fs_fuse.io, hf3fs_fuse.fuse, hf3fs_py_usrbio\n"
            "print(hf3fs_py_usrbio.__file__, hf3fs_fuse.io.read_file(sys.argv[1]))",
            self.path(b"from the mount"),
            env=env,
            cwd="/",
        )
        self.assertTrue(said.startswith(str(place)), said)
        self.assertTrue(said.endswith("b'from the mount'\n"), said)


if __name__ == "__main__":
    unittest.main()
