# SPDX-License-Identifier: Apache-2.0
"""Builds wheels, editable installs and source archives. It needs only Python, make and a C compiler.

pip calls the functions of PEP 517 and PEP 660; `make wheel` and `make sdist` run this file:

    backend.py DIRECTORY [x86_64 | aarch64]    a wheel, for another processor by its cross compiler
    backend.py --sdist DIRECTORY
"""

import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

NAME = "hf3fs_py_usrbio"
LIBRARY = "libhf3fs_api_shared.so"
PACKAGES = ("hf3fs_fuse", "hf3fs_py_usrbio")

HERE = pathlib.Path(__file__).resolve().parent
# In a source archive, the C library and the licence are beside this file.
C_LIBRARY = next(path for path in (HERE / "c", HERE.parent / "c") if path.is_dir())
LICENSE = next(path for path in (HERE / "LICENSE", HERE.parents[1] / "LICENSE") if path.is_file())

VERSION = re.search(r'__version__ = "(.*)"', (HERE / "src" / NAME / "_version.py").read_text()).group(1)
INFO = f"{NAME}-{VERSION}.dist-info"
METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: 3FS's user-space rings (USRBIO) for Python
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

"""


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None, processor=None):
    library, tag = _library_and_tag(processor)
    files = {f"{NAME}/{LIBRARY}": library}
    for package in PACKAGES:
        for path in sorted((HERE / "src" / package).iterdir()):
            if path.suffix in (".py", ".pyi", ".typed"):
                files[f"{package}/{path.name}"] = path.read_bytes()
    return _write_wheel(wheel_directory, tag, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel that only names this source, in which the library is built, too."""
    library, tag = _library_and_tag(None)
    _write(HERE / "src" / NAME / LIBRARY, library)
    return _write_wheel(wheel_directory, tag, {f"{NAME}.pth": f"{HERE / 'src'}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    root = f"{NAME}-{VERSION}"
    files = {"PKG-INFO": METADATA.encode() + (HERE / "README.md").read_bytes(), "LICENSE": LICENSE.read_bytes()}
    for top, names in ((HERE, ("README.md", "backend.py", "pyproject.toml", "src")), (C_LIBRARY, ("Makefile", "hf3fs_usrbio.pc.in", "include", "src"))):
        for name in names:
            for path in sorted((top / name).rglob("*")) if (top / name).is_dir() else [top / name]:
                if path.is_file() and path.suffix not in (".so", ".pyc"):
                    files[("c/" if top == C_LIBRARY else "") + str(path.relative_to(top))] = path.read_bytes()
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    _write(pathlib.Path(sdist_directory) / f"{root}.tar.gz", packed.getvalue())
    return f"{root}.tar.gz"


def _library_and_tag(processor):
    """The stripped library, and the tag of wheels with it."""
    here = platform.machine()
    processor = processor or here
    tools = "" if processor == here else f"{processor}-linux-gnu-"
    with tempfile.TemporaryDirectory() as scratch:
        make = ["make", "-s", "-C", C_LIBRARY, f"BUILD={scratch}"] + ([f"CC={tools}gcc"] if tools else [])
        # Without -g, whose paths would be in the build ID: the same sources give the same bytes wherever they are.
        make.append("CFLAGS=" + os.environ.get("CFLAGS", "-O2"))
        subprocess.run([*make, f"{scratch}/{LIBRARY}"], check=True, stdout=sys.stderr)
        library = pathlib.Path(scratch) / LIBRARY
        # Debug sections are useless without the sources.
        subprocess.run([f"{tools}strip", "--strip-debug", library], check=True)
        said = subprocess.run(["readelf", "--version-info", "--wide", library], check=True, capture_output=True, text=True)
        # manylinux_X_Y: X.Y is the newest glibc whose symbols the library needs.
        major, minor = max((int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", said.stdout))
        return library.read_bytes(), f"py3-none-manylinux_{major}_{minor}_{processor}"


def _write_wheel(directory, tag, files):
    files[f"{INFO}/METADATA"] = METADATA.encode() + (HERE / "README.md").read_bytes()
    files[f"{INFO}/LICENSE"] = LICENSE.read_bytes()
    files[f"{INFO}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: kv3fs\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{INFO}/RECORD"] = _record(files, f"{INFO}/RECORD")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980: the same files give the same bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    name = f"{NAME}-{VERSION}-{tag}.whl"
    _write(pathlib.Path(directory) / name, packed.getvalue())
    return name


def _record(files, own_name):
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join(lines + [f"{own_name},,\n"]).encode()


def _write(path, content):
    """Writes path completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(content)
    os.replace(part, path)


if __name__ == "__main__":
    if sys.argv[1] == "--sdist":
        print(os.path.join(sys.argv[2], build_sdist(sys.argv[2])))
    else:
        print(os.path.join(sys.argv[1], build_wheel(sys.argv[1], processor=sys.argv[2] if len(sys.argv) > 2 else None)))
