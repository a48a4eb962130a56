# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from check_tests_registered import faults
from planting import Write
from tree_check import ROOT

pytest_plugins = ["planting"]


def test_this_tree_runs_all_its_tests() -> None:
    assert faults(ROOT) == []


def test_a_cpp_test_in_no_list_is_found(tree: Path, write: Write) -> None:
    write("tests/unit/base/CMakeLists.txt", "target_sources(t PRIVATE\n  known_test.cpp)\n")
    write("tests/unit/base/known_test.cpp", "TEST(A, B) {}\n")
    write("tests/unit/base/forgotten_test.cpp", "TEST(A, C) {}\n")
    (fault,) = faults(tree)
    assert fault.startswith("tests/unit/base/forgotten_test.cpp")


def test_a_list_in_a_comment_does_not_count(tree: Path, write: Write) -> None:
    write("csrc/base/CMakeLists.txt", "# a.cpp\nadd_library(x b.cpp) # a.cpp\n")
    write("csrc/base/a.cpp", "")
    write("csrc/base/b.cpp", "")
    (fault,) = faults(tree)
    assert fault.startswith("csrc/base/a.cpp")


def test_a_list_of_a_folder_above_counts(tree: Path, write: Write) -> None:
    write("tests/CMakeLists.txt", "add_executable(t unit/a_test.cpp)\n")
    write("tests/unit/a_test.cpp", "TEST_F(A, B) {}\n")
    assert faults(tree) == []


def test_cpp_tests_in_a_file_without_the_ending_are_found(tree: Path, write: Write) -> None:
    write("tests/CMakeLists.txt", "add_executable(t a.cpp)\n")
    write("tests/a.cpp", "TEST_P(A, B) {}\n")
    (fault,) = faults(tree)
    assert "_test.cpp" in fault


def test_a_python_test_that_matches_no_pattern_is_found(tree: Path, write: Write) -> None:
    write("tests/python/issue_0001.py", "def test_something() -> None: ...\n")
    (fault,) = faults(tree)
    assert "pytest collects only" in fault


def test_a_python_test_outside_the_testpaths_is_found(tree: Path, write: Write) -> None:
    write("examples/test_it.py", "class TestIt: ...\n")
    (fault,) = faults(tree)
    assert "pytest looks only in" in fault


def test_python_without_tests_may_lie_anywhere(tree: Path, write: Write) -> None:
    write("tests/python/children.py", "def run() -> None: ...\n")
    write("tests/python/test_it.py", "def test_it() -> None: ...\n")
    assert faults(tree) == []
