# SPDX-License-Identifier: Apache-2.0
"""Plants faults in sources that are read joined into one: each is found, and where it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from planting import Write
from tree_check import ROOT

pytest_plugins = ["planting"]

FAULTS = {
    "clang-diagnostic-unused-const-variable": "const int kUnused = 1;",
    "clang-diagnostic-unused-function": "static int unused() { return 1; }",
    "clang-analyzer-core.NullDereference": "int read() { int* p = nullptr; return *p; }",
    "bugprone-use-after-move": (
        "#include <string>\n#include <utility>\n"
        "std::string twice(std::string a) { std::string b = std::move(a); return b + a; }"
    ),
    "misc-unused-using-decls": "#include <map>\nusing std::map;",
    "misc-unused-alias-decls": "namespace base {}\nnamespace other = base;",
    "performance-unnecessary-value-param": (
        "#include <string>\nunsigned long length(std::string text) { return text.size(); }"
    ),
    "readability-identifier-naming": "int BadName() { return 1; }",
    "readability-container-size-empty": (
        "#include <string>\nbool none(const std::string& text) { return text.size() == 0; }"
    ),
    "clang-diagnostic-thread-safety-analysis": (
        '#include "base/mutex.h"\n'
        "struct Counter { modcache::Mutex mutex; int value MODCACHE_GUARDED_BY(mutex) = 0; };\n"
        "int read(Counter& counter) { return counter.value; }"
    ),
}


def said_of(tree: Path, *sources: Path) -> subprocess.CompletedProcess[str]:
    """What the stage would say of sources that a build joins."""
    build = tree / "build"
    build.mkdir()
    unity = build / "unity_0_cxx.cxx"
    unity.write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
    command = f"c++ -I{tree / 'csrc'} -Wall -std=c++20 -o unity.o -c {unity}"
    entry = {"directory": str(build), "command": command, "file": str(unity)}
    (build / "compile_commands.json").write_text(json.dumps([entry]), encoding="utf-8")
    script = ROOT / "tests" / "lint" / "run_clang_tidy.py"
    command_line = (sys.executable, script, build, tree / "csrc")
    return subprocess.run(command_line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_found_in_its_source(tree: Path, write: Write, rule: str) -> None:
    # The fault stands in the last line.
    text = f"// One comment.\n{FAULTS[rule]}\n"
    first = write("csrc/base/first.cpp", "int first() { return 1; }\n")
    last = write("csrc/base/last.cpp", "int last() { return 3; }\n")
    second = write("csrc/base/second.cpp", text)
    done = said_of(tree, first, second, last)
    assert done.returncode == 1
    assert f"{second}:{text.count(chr(10))}:" in done.stdout
    assert rule in done.stdout
    assert "first.cpp" not in done.stdout
    assert "last.cpp" not in done.stdout


def test_a_fault_in_a_header_is_found(tree: Path, write: Write) -> None:
    write("csrc/base/planted.h", "#pragma once\ninline int BadName() { return 1; }\n")
    source = write("csrc/base/planted.cpp", '#include "planted.h"\n')
    done = said_of(tree, write("csrc/base/other.cpp", "int other();\n"), source)
    assert done.returncode == 1
    assert "csrc/base/planted.h:2:" in done.stdout


def test_a_finding_may_be_excused(tree: Path, write: Write) -> None:
    naming = "NOLINT(readability-identifier-naming)"
    source = write("csrc/base/planted.cpp", f"int BadName() {{ return 1; }}  // {naming}: odd\n")
    done = said_of(tree, source, write("csrc/base/other.cpp", "int other();\n"))
    assert (done.returncode, done.stdout) == (
        0,
        "clang-tidy over 2 sources in 1 units; 0 with complaints\n",
    )


def test_a_source_that_does_not_compile_is_named(tree: Path, write: Write) -> None:
    source = write("csrc/base/planted.cpp", "\nint broken( { return 1; }\n")
    done = said_of(tree, write("csrc/base/other.cpp", "int other();\n"), source)
    assert done.returncode == 1
    assert f"{source}:2:" in done.stdout


def test_a_build_without_any_source_fails(tree: Path, write: Write) -> None:
    assert said_of(tree, write("elsewhere/planted.cpp", "int planted();\n")).returncode == 1
