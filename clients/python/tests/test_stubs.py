# SPDX-License-Identifier: Apache-2.0
"""The .pyi files match the code: the same names with the same parameters."""

import ast
import enum
import importlib
import inspect
import operator
import os
import shutil
import subprocess
import tempfile
import unittest

import hf3fs_py_usrbio
from hf3fs_fuse import io

import daemon

SOURCE = os.path.dirname(os.path.dirname(hf3fs_py_usrbio.__file__))
STUBS = {
    "hf3fs_py_usrbio": "hf3fs_py_usrbio/__init__.pyi",
    "hf3fs_fuse": "hf3fs_fuse/__init__.pyi",
    "hf3fs_fuse.io": "hf3fs_fuse/io.pyi",
    "hf3fs_fuse.fuse": "hf3fs_fuse/fuse.pyi",
    "hf3fs_fuse.fuse_demo": "hf3fs_fuse/fuse_demo.pyi",
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NOT_PUBLIC_SPECIALS = {"__reduce_ex__", "__repr__", "__del__", "__init_subclass__"}


def parameters_of_stub(function):
    """[(name, kind, default)] of an ast.FunctionDef."""
    a = function.args
    defaults = [inspect.Parameter.empty] * (len(a.args) - len(a.defaults)) + [_value(d) for d in a.defaults]
    found = [(p.arg, "positional", d) for p, d in zip(a.args, defaults)]
    if a.vararg:
        found.append((a.vararg.arg, "*", inspect.Parameter.empty))
    for p, d in zip(a.kwonlyargs, a.kw_defaults):
        found.append((p.arg, "keyword", inspect.Parameter.empty if d is None else _value(d)))
    if a.kwarg:
        found.append((a.kwarg.arg, "**", inspect.Parameter.empty))
    return found


def _value(node):
    return eval(compile(ast.Expression(node), "stub", "eval"))


def parameters_of_code(function):
    kinds = {
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    return [(p.name, kinds[p.kind], p.default) for p in inspect.signature(function).parameters.values()]


NATIVE_RING = "hf3fs_mount_point, entries, for_read=True, io_depth=0, priority=None, timeout=None, numa=-1, flags=0"
# usrbio.md, chapter 6. punch_hole's start and end are required nevertheless: see test_files.
CHAPTER_6 = {
    ("hf3fs_fuse.io", "extract_mount_point"): "path",
    ("hf3fs_fuse.io", "register_fd"): "fd, flags=0",
    ("hf3fs_fuse.io", "deregister_fd"): "fd",
    ("hf3fs_fuse.io", "force_fsync"): "fd",
    ("hf3fs_fuse.io", "hardlink"): "target, link_name",
    ("hf3fs_fuse.io", "punch_hole"): "filename=None, start=None, end=None, flags=0, *, fd=None",
    ("hf3fs_fuse.io", "make_iovec"): "shm, hf3fs_mount_point, block_size=0, numa=-1",
    ("hf3fs_fuse.io", "make_ioring"): NATIVE_RING,
    ("hf3fs_fuse.io", "read_file"): "fn, hf3fs_mount_point=None, block_size=1<<30, off=0, priority=None, cb=None",
    ("hf3fs_fuse.io", "iovec.__new__"): "cls, iov, link",
    ("hf3fs_fuse.io", "ioring.__init__"): "self, ior",
    ("hf3fs_fuse.io", "ioring.size_for_entries"): "entries",
    ("hf3fs_fuse.io", "ioring.prepare"): "self, iov, read, fd, off, userdata=None",
    ("hf3fs_fuse.io", "ioring.submit"): "self",
    ("hf3fs_fuse.io", "ioring.wait"): "self, *, max_results=0, min_results=0, timeout=None",
    ("hf3fs_fuse.fuse", "get_mount_point"): "p",
    ("hf3fs_py_usrbio", "iovec.__new__"): "cls, base, id, hf3fs_mount_point, block_size=0, numa=-1",
    ("hf3fs_py_usrbio", "iovec.slice_by"): "self, buf",
    ("hf3fs_py_usrbio", "ioring.__init__"): "self, " + NATIVE_RING,
    ("hf3fs_py_usrbio", "ioring.size_for_entries"): "entries",
    ("hf3fs_py_usrbio", "ioring.prepare"): "self, iov, read, fd, off, userdata=None",
    ("hf3fs_py_usrbio", "ioring.submit"): "self",
    ("hf3fs_py_usrbio", "ioring.wait"): "self, *, max_results=0, min_results=0, timeout=None",
    ("hf3fs_py_usrbio", "ioring.destroy"): "self",
}


class TestStubs(unittest.TestCase):
    def test_the_specification_and_code_agree(self):
        for (module, name), parameters in CHAPTER_6.items():
            [said] = ast.parse(f"def f({parameters}): ...").body
            code = operator.attrgetter(name)(importlib.import_module(module))
            self.assertEqual(parameters_of_stub(said), parameters_of_code(code), name)

    def test_stubs_and_code_agree(self):
        for module, stub in STUBS.items():
            with self.subTest(module), open(os.path.join(SOURCE, stub)) as f:
                self.compare_module(importlib.import_module(module), ast.parse(f.read()))

    def compare_module(self, module, stub):
        functions = {n.name: n for n in stub.body if isinstance(n, FUNCTIONS)}
        # A stub's private classes describe arguments.
        classes = {n.name: n for n in stub.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")}
        own = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and value.__module__.partition("._")[0] == module.__name__
        }
        self.assertEqual(set(own), set(functions) | set(classes))
        for name, node in functions.items():
            self.assertEqual(parameters_of_stub(node), parameters_of_code(own[name]), name)
        for name, node in classes.items():
            self.compare_class(own[name], node)

    def compare_class(self, cls, stub):
        if issubclass(cls, enum.Enum):
            members = {n.targets[0].id: _value(n.value) for n in stub.body if isinstance(n, ast.Assign)}
            self.assertEqual(members, {m.name: m.value for m in cls})
            return
        functions = {n.name: n for n in stub.body if isinstance(n, FUNCTIONS)}
        own = {
            name: value
            for name, value in vars(cls).items()
            if (inspect.isfunction(value) or isinstance(value, (staticmethod, property, io._Native)))
            and name not in NOT_PUBLIC_SPECIALS
            and (name.startswith("__") or not name.startswith("_"))
        }
        own.pop("__init__" if "__new__" in own else None, None)
        self.assertEqual(set(own), set(functions), cls)
        for name, node in functions.items():
            code = inspect.getattr_static(cls, name)
            if isinstance(code, property):
                self.assertTrue(any(getattr(d, "id", None) == "property" for d in node.decorator_list), name)
                continue
            if isinstance(code, (staticmethod, io._Native)):
                code = getattr(cls, name)
            self.assertEqual(parameters_of_stub(node), parameters_of_code(code), f"{cls.__name__}.{name}")

    def test_all_names_what_there_is(self):
        for module in map(importlib.import_module, STUBS):
            for name in getattr(module, "__all__", []):
                self.assertTrue(hasattr(module, name), name)

    def test_mypy(self):
        """A program that uses everything, and the stubs themselves; a wrong type is found."""
        mypy = shutil.which("mypy")
        if mypy is None:
            daemon.not_tested("there is no mypy; scripts/need installs it")
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "typed_program.py")
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(
                [mypy, "--strict", "--cache-dir", cache, program, *(os.path.join(SOURCE, stub) for stub in STUBS.values())],
                env={**os.environ, "MYPYPATH": SOURCE, "PYTHONPATH": ""},
                capture_output=True,
                text=True,
                timeout=900,
            )
        self.assertEqual(done.stdout, "Success: no issues found in 6 source files\n", done.stderr)

    def test_typed_markers(self):
        for package in ("hf3fs_py_usrbio", "hf3fs_fuse"):
            self.assertTrue(os.path.exists(os.path.join(SOURCE, package, "py.typed")))


if __name__ == "__main__":
    unittest.main()
