# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from check_text import LICENCE, faults
from planting import Write
from tree_check import ROOT

pytest_plugins = ["planting"]


@pytest.fixture(autouse=True)
def _repository(tree: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)


def test_this_tree_keeps_the_rules() -> None:
    assert faults(ROOT) == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("csrc/base/a.cpp", "int a;\n", "first line should say"),
        ("tests/run", "#!/bin/bash\n\nset -e\n", "first line should say"),
        ("csrc/CMakeLists.txt", "project(a)\n", "first line should say"),
        ("README.md", "word\n" * 151, "more than 150 lines"),
        ("a.md", "see /wo" + "rk/main\n", "a path of one machine"),
        ("a.toml", 'cache = "/ro' + 'ot/x"\n', "a path of one machine"),
        ("a.md", "a \n", "white space at the end"),
        ("a.md", "a\n\tb\n", "a tab"),
        ("a.json", "{}", "no newline at the end"),
        ("csrc/a.h", f"// {LICENCE}\n\n// What it does.\n", "a sentence with a subject"),
        ("csrc/a.h", f"// {LICENCE}\n\nint a;  // see base/gone.h\n", "no file base/gone.h"),
        ("csrc/a.md", "`csrc/base/gone.cpp`\n", "no file csrc/base/gone.cpp"),
        ("python_shim/a.py", f"# {LICENCE}\n\n# Of all, one.\n", "a sentence with a subject"),
    ],
)
def test_a_breach_is_found(tree: Path, write: Write, name: str, text: str, complaint: str) -> None:
    write(name, text)
    (fault,) = faults(tree)
    assert fault.startswith(name)
    assert complaint in fault


def test_what_git_ignores_is_not_looked_at(tree: Path, write: Write) -> None:
    write(".gitignore", "build/\n")
    write("build/a.cpp", "int a;")
    assert faults(tree) == []


def test_a_word_within_a_comment_is_no_fragment(tree: Path, write: Write) -> None:
    write("csrc/a.h", f"// {LICENCE}\n\n// Says what comes\n// To pass.\n")
    assert faults(tree) == []


def test_a_comment_may_name_a_file_by_the_end_of_its_path(tree: Path, write: Write) -> None:
    write("csrc/base/a.h", f"// {LICENCE}\n")
    write("csrc/b.h", f"// {LICENCE}\n\n// a.h, base/a.h, csrc/base/a.h and torch/version.py\n")
    assert faults(tree) == []


def test_the_licence_may_follow_the_interpreter(tree: Path, write: Write) -> None:
    write("run", f"#!/usr/bin/env bash\n# {LICENCE}\n")
    assert faults(tree) == []
