# SPDX-License-Identifier: Apache-2.0
"""The .pyi files say what the code does: the same names with the same parameters."""

import ast
import enum
import importlib
import inspect
import os
import unittest

import hf3fs_py_usrbio

SOURCE = os.path.dirname(os.path.dirname(hf3fs_py_usrbio.__file__))
STUBS = {
    "hf3fs_py_usrbio": "hf3fs_py_usrbio/__init__.pyi",
    "hf3fs_fuse": "hf3fs_fuse/__init__.pyi",
    "hf3fs_fuse.io": "hf3fs_fuse/io.pyi",
    "hf3fs_fuse.fuse": "hf3fs_fuse/fuse.pyi",
}
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


class TestStubs(unittest.TestCase):
    def test_stubs_and_code_agree(self):
        for module, stub in STUBS.items():
            with self.subTest(module), open(os.path.join(SOURCE, stub)) as f:
                self.compare_module(importlib.import_module(module), ast.parse(f.read()))

    def compare_module(self, module, stub):
        functions = {n.name: n for n in stub.body if isinstance(n, ast.FunctionDef)}
        classes = {n.name: n for n in stub.body if isinstance(n, ast.ClassDef)}
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
        functions = {n.name: n for n in stub.body if isinstance(n, ast.FunctionDef)}
        own = {
            name: value
            for name, value in vars(cls).items()
            if (inspect.isfunction(value) or isinstance(value, (staticmethod, property)))
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
            code = code.__func__ if isinstance(code, staticmethod) else code
            self.assertEqual(parameters_of_stub(node), parameters_of_code(code), f"{cls.__name__}.{name}")

    def test_all_names_what_there_is(self):
        for module in map(importlib.import_module, STUBS):
            for name in getattr(module, "__all__", []):
                self.assertTrue(hasattr(module, name), name)

    def test_typed_markers(self):
        for package in ("hf3fs_py_usrbio", "hf3fs_fuse"):
            self.assertTrue(os.path.exists(os.path.join(SOURCE, package, "py.typed")))


if __name__ == "__main__":
    unittest.main()
