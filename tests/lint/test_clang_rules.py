# SPDX-License-Identifier: Apache-2.0
"""Plants faults for clang-tidy: a rule that never fires would go unnoticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from planting import Write

pytest_plugins = ["planting"]

TIDY = Path(sys.prefix) / "bin" / "clang-tidy"
HEADER = "#pragma once\n#include <string>\n"

LOCK_WITH_FAULT = """
#include "base/mutex.h"
struct Counter {
  modcache::Mutex mutex;
  int value MODCACHE_GUARDED_BY(mutex) = 0;
};
int read(Counter& counter) { return counter.value; }
"""


def complaints(tree: Path, source: Path) -> str:
    """What the tidy preset would say of `source`; fails where it would let it pass."""
    options = ("--quiet", "--extra-arg=-Wthread-safety")
    command = [TIDY, *options, source, "--", "-std=c++20", f"-I{tree / 'csrc'}"]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert result.returncode != 0, "clang-tidy let the planted fault pass"
    return result.stdout


@pytest.mark.parametrize("folder", ["csrc/base", "torchscript_ops"])
def test_headers_of_ours_are_looked_into(tree: Path, write: Write, folder: str) -> None:
    write(
        f"{folder}/planted.h",
        HEADER + "inline int length(std::string text) { return static_cast<int>(text.size()); }\n",
    )
    source = write(f"{folder}/planted.cpp", '#include "planted.h"\n')
    said = complaints(tree, source)
    assert f"{folder}/planted.h" in said
    assert "performance-unnecessary-value-param" in said


def test_a_function_of_more_than_100_lines_is_refused(tree: Path, write: Write) -> None:
    body = "  ++a;\n" * 101
    function = f"int count() {{\n  int a = 0;\n{body}  return a;\n}}\n"
    source = write("csrc/base/planted.cpp", function)
    assert "readability-function-size" in complaints(tree, source)


def test_a_guarded_member_read_without_its_lock_is_refused(tree: Path, write: Write) -> None:
    source = write("csrc/base/planted.cpp", LOCK_WITH_FAULT)
    assert "requires holding mutex" in complaints(tree, source)


@pytest.mark.parametrize(
    "line",
    ["int BadName() { return 1; }", "struct bad_name {};", "constexpr int bad_name = 1;"],
)
def test_another_way_of_naming_is_refused(tree: Path, write: Write, line: str) -> None:
    source = write("csrc/base/planted.cpp", f"{line}\n")
    assert "readability-identifier-naming" in complaints(tree, source)
