# SPDX-License-Identifier: Apache-2.0
"""Plants a target named as another target's file: Ninja would build either by that name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tree_check import ROOT

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(planted LANGUAGES CXX)
list(PREPEND CMAKE_MODULE_PATH {modules})
include(TargetNames)
add_subdirectory(inner)
add_executable(program main.cpp)
set_target_properties(program PROPERTIES OUTPUT_NAME {output_name})
modcache_check_target_names()
"""


@pytest.mark.parametrize(("output_name", "is_refused"), [("engine", True), ("program.bin", False)])
def test_a_name_that_means_two_things_is_refused(
    tmp_path: Path, output_name: str, is_refused: bool
) -> None:
    text = PROJECT.format(modules=ROOT / "cmake", output_name=output_name)
    (tmp_path / "CMakeLists.txt").write_text(text, encoding="utf-8")
    (tmp_path / "main.cpp").write_text("int main() {}\n", encoding="utf-8")
    inner = tmp_path / "inner" / "CMakeLists.txt"
    inner.parent.mkdir()
    inner.write_text("add_library(engine SHARED ../main.cpp)\n", encoding="utf-8")
    command = ("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-GNinja")
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert (result.returncode != 0) == is_refused, result.stderr
    assert ("'program' makes a file named 'engine'" in result.stderr) == is_refused
