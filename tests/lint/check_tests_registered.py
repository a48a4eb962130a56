# SPDX-License-Identifier: Apache-2.0
"""Finds tests that nobody runs, and sources that nobody builds.

    python tests/lint/check_tests_registered.py [root]

C++: every source of the library, of the tests and of the examples stands in the CMakeLists.txt
of its folder or of a folder above. Python: every file with tests is one that pytest collects.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tree_check import report

_BUILT_FOLDERS = (
    "csrc",
    "command_line",
    "torchscript_ops",
    "triton_cache",
    "python_shim",
    "tests",
    "examples",
)
_CPP_TEST = re.compile(r"^\s*(TYPED_TEST|TEST)(_F|_P)?\s*\(", re.MULTILINE)


def sources_listed(root: Path) -> set[Path]:
    """All .cpp files that some CMakeLists.txt names."""
    listed = set()
    for folder in _BUILT_FOLDERS:
        for cmake_list in (root / folder).rglob("CMakeLists.txt"):
            text = re.sub(r"#.*", "", cmake_list.read_text(encoding="utf-8"))
            names = re.findall(r"[\w./-]+\.cpp\b", text)
            listed |= {(cmake_list.parent / name).resolve() for name in names}
    return listed


def cpp_faults(root: Path) -> Iterator[str]:
    listed = sources_listed(root)
    for folder in _BUILT_FOLDERS:
        for path in sorted((root / folder).rglob("*.cpp")):
            name = path.relative_to(root).as_posix()
            if path.resolve() not in listed:
                yield f"{name}: in no CMakeLists.txt, so nobody builds it"
            is_test = _CPP_TEST.search(path.read_text(encoding="utf-8"))
            if is_test and not path.name.endswith("_test.cpp"):
                yield f"{name}: has tests, so its name should end in _test.cpp"


def _has_tests(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        (isinstance(node, functions) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in tree.body
    )


def python_faults(root: Path) -> Iterator[str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    options = settings["tool"]["pytest"]["ini_options"]
    for folder in ("tests", "examples", "python_shim"):
        for path in sorted((root / folder).rglob("*.py")):
            if not _has_tests(path):
                continue
            name = path.relative_to(root).as_posix()
            if not any(fnmatch.fnmatch(path.name, pattern) for pattern in options["python_files"]):
                yield f"{name}: has tests, and pytest collects only {options['python_files']}"
            if not any(name.startswith(f"{place}/") for place in options["testpaths"]):
                yield f"{name}: has tests, and pytest looks only in {options['testpaths']}"


def faults(root: Path) -> list[str]:
    """One line for each test that is not run and each source that is not built."""
    return [*cpp_faults(root), *python_faults(root)]


if __name__ == "__main__":
    sys.exit(report(faults))
