# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel. It needs only Python, make and a C compiler.

pip calls build_wheel when it is given this directory; `make wheel` runs this file.
"""

import base64
import hashlib
import io
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

NAME, VERSION = "hf3fs_py_usrbio", "1.3.0"
LIBRARY = "libhf3fs_api_shared.so"
PACKAGES = ("hf3fs_fuse", "hf3fs_py_usrbio")

HERE = pathlib.Path(__file__).resolve().parent

METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: 3FS's user-space rings (USRBIO) for Python
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

"""


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as scratch:
        library = _build_library(scratch)
        tag = f"py3-none-{_platform_tag(library)}"
        files = {f"hf3fs_py_usrbio/{LIBRARY}": library.read_bytes()}
    for package in PACKAGES:
        for path in sorted((HERE / "src" / package).iterdir()):
            if path.suffix in (".py", ".pyi", ".typed"):
                files[f"{package}/{path.name}"] = path.read_bytes()
    info = f"{NAME}-{VERSION}.dist-info"
    files[f"{info}/METADATA"] = METADATA.encode() + (HERE / "README.md").read_bytes()
    files[f"{info}/LICENSE"] = (HERE.parents[1] / "LICENSE").read_bytes()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: kv3fs\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    name = f"{NAME}-{VERSION}-{tag}.whl"
    pathlib.Path(wheel_directory).mkdir(parents=True, exist_ok=True)
    _write_zip(pathlib.Path(wheel_directory) / name, files)
    return name


def _build_library(scratch):
    source = HERE.parent / "c"
    subprocess.run(["make", "-s", "-C", source, f"BUILD={scratch}", f"{scratch}/{LIBRARY}"], check=True, stdout=sys.stderr)
    library = pathlib.Path(scratch) / LIBRARY
    # Debug sections are useless without the sources.
    subprocess.run(["strip", "--strip-debug", library], check=True)
    return library


def _platform_tag(library):
    """manylinux_X_Y_ARCH: X.Y is the newest glibc whose symbols the library needs."""
    said = subprocess.run(["readelf", "--version-info", "--wide", library], check=True, capture_output=True, text=True)
    major, minor = max((int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", said.stdout))
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def _record(files, own_name):
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join(lines + [f"{own_name},,\n"]).encode()


def _write_zip(path, files):
    """Writes path completely or not at all. The same files give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    part = path.with_suffix(".part")
    part.write_bytes(packed.getvalue())
    os.replace(part, path)


if __name__ == "__main__":
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
