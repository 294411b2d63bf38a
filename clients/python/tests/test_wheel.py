# SPDX-License-Identifier: Apache-2.0
"""The wheel: its content, and that it works without anything else installed."""

import base64
import csv
import hashlib
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import daemon
from mounted import MountedTestCase

PYTHON_ROOM = pathlib.Path(__file__).resolve().parents[1]
BUILD_SECONDS = 900


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
        # Debian 10 and its contemporaries have glibc 2.28.
        self.assertRegex(os.path.basename(self.wheel), rf"-py3-none-manylinux_2_28_{platform.machine()}\.whl$")

    def test_same_bytes_again(self):
        again = run(sys.executable, PYTHON_ROOM / "backend.py", self.scratch / "again").strip()
        self.assertEqual(pathlib.Path(again).read_bytes(), pathlib.Path(self.wheel).read_bytes())

    def test_installed_in_an_empty_environment(self):
        self.installed(self.wheel, within="venv")

    def test_source_archive(self):
        archive = run(sys.executable, PYTHON_ROOM / "backend.py", "--sdist", self.scratch).strip()
        again = run(sys.executable, PYTHON_ROOM / "backend.py", "--sdist", self.scratch / "again").strip()
        self.assertEqual(pathlib.Path(again).read_bytes(), pathlib.Path(archive).read_bytes())
        self.installed(archive, within="venv")

    def test_editable(self):
        source = self.scratch / "source"
        shutil.copytree(PYTHON_ROOM.parents[1] / "clients" / "c", source / "clients" / "c", ignore=shutil.ignore_patterns("build"))
        shutil.copytree(PYTHON_ROOM, source / "clients" / "python")
        shutil.copy(PYTHON_ROOM.parents[1] / "LICENSE", source)
        self.installed("-e", source / "clients" / "python", within="source")

    def installed(self, *what, within):
        """Installs it in an empty environment, and reads a file of the mount with it."""
        place = self.scratch / "venv"
        try:
            run(sys.executable, "-m", "venv", "--clear", place)
        except AssertionError as error:
            daemon.not_tested(f"no virtual environment can be made: {error}")
        kept = ("PATH", "HOME", "LANG", "TMPDIR")
        env = {name: value for name, value in os.environ.items() if name in kept}
        run(place / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", "--no-cache-dir", *what, env=env)
        said = run(
            place / "bin" / "python",
            "-c",
            "import sys, hf3fs_fuse.io, hf3fs_fuse.fuse, hf3fs_py_usrbio\n"
            "from importlib.metadata import version\n"
            "print(hf3fs_py_usrbio.__file__, version('hf3fs_py_usrbio'), hf3fs_py_usrbio.__version__)\n"
            "print(hf3fs_fuse.io.read_file(sys.argv[1]))",
            self.path(b"from the mount"),
            env=env,
            cwd="/",
        )
        where, version, own, content = said.split(maxsplit=3)
        self.assertTrue(where.startswith(str(self.scratch / within)), said)
        self.assertEqual((own, content), (version, "b'from the mount'\n"))


if __name__ == "__main__":
    unittest.main()
