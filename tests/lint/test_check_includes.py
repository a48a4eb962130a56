# SPDX-License-Identifier: Apache-2.0
"""Plants sources of which one leans on what another includes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tree_check import ROOT


def check(folder: Path, **sources: str) -> subprocess.CompletedProcess[str]:
    entries = []
    for name, text in sources.items():
        source = folder / "tests" / f"{name}.cpp"
        source.parent.mkdir(exist_ok=True)
        source.write_text(text, encoding="utf-8")
        command = f"c++ -O3 -I{folder} -o {name}.o -c {source}"
        entries.append({"directory": str(folder), "command": command, "file": str(source)})
    (folder / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
    return check_build(folder)


def check_build(folder: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tests" / "lint" / "check_includes.py"
    command_line = (sys.executable, script, folder, folder / "tests")
    return subprocess.run(command_line, capture_output=True, text=True, check=False)


def test_a_source_without_its_include_is_named(tmp_path: Path) -> None:
    done = check(
        tmp_path,
        first="#include <string>\nstd::string a;\n",
        second='const char* text() { return "; -o a"; }\nstd::string b;\n',
    )
    assert done.returncode == 1
    assert "second.cpp" in done.stdout
    assert "first.cpp" not in done.stdout
    assert "1 of 2 sources" in done.stdout
    assert not list(tmp_path.glob("*.o"))


def test_whole_sources_pass(tmp_path: Path) -> None:
    done = check(tmp_path, first="#include <string>\nstd::string a;\n")
    assert (done.returncode, done.stdout) == (0, "1 of 1 sources compile by themselves\n")


def test_a_precompiled_header_is_for_those_alone_that_include_it(tmp_path: Path) -> None:
    (tmp_path / "ATen").mkdir()
    (tmp_path / "ATen" / "ATen.h").write_text("#pragma once\nstruct Tensor {};\n", encoding="utf-8")
    (tmp_path / "ours.h").write_text("#pragma once\nstruct Ours {};\n", encoding="utf-8")
    whole = {
        f"whole_{i}": "#include <ATen/ATen.h>\n#include <ours.h>\nTensor a; Ours b;\n"
        for i in range(5)
    }
    done = check(
        tmp_path,
        **whole,
        leans_on_torch="Tensor a;\n",
        leans_on_ours="#include <ATen/ATen.h>\nTensor a; Ours b;\n",
    )
    assert list(tmp_path.glob("precompiled-*.gch"))
    assert "leans_on_torch.cpp" in done.stdout
    assert "leans_on_ours.cpp" in done.stdout
    assert "5 of 7 sources" in done.stdout


def test_sources_that_a_build_joins_are_compiled_one_by_one(tmp_path: Path) -> None:
    first, second = tmp_path / "tests" / "first.cpp", tmp_path / "tests" / "second.cpp"
    first.parent.mkdir()
    first.write_text("#include <string>\nstd::string a;\n", encoding="utf-8")
    second.write_text("std::string b;\n", encoding="utf-8")
    unity = tmp_path / "unity_0_cxx.cxx"
    unity.write_text(f'#include "{first}"\n#include "{second}"\n', encoding="utf-8")
    command = f"c++ -o unity.o -c {unity}"
    entry = {"directory": str(tmp_path), "command": command, "file": str(unity)}
    (tmp_path / "compile_commands.json").write_text(json.dumps([entry]), encoding="utf-8")
    done = check_build(tmp_path)
    assert done.returncode == 1
    assert "second.cpp" in done.stdout
    assert "1 of 2 sources" in done.stdout


@pytest.mark.parametrize("own_header_is_whole", [True, False])
def test_a_source_gets_precompiled_what_its_own_header_brings(
    tmp_path: Path, own_header_is_whole: bool
) -> None:
    (tmp_path / "ATen").mkdir()
    (tmp_path / "ATen" / "ATen.h").write_text("#pragma once\nstruct Tensor {};\n", encoding="utf-8")
    include = "#include <ATen/ATen.h>\n" if own_header_is_whole else ""
    texts = {}
    for i in range(5):
        header = f"#pragma once\n{include}inline Tensor tensor_{i}() {{ return {{}}; }}\n"
        (tmp_path / f"whole_{i}.h").write_text(header, encoding="utf-8")
        texts[f"whole_{i}"] = f'#include "whole_{i}.h"\n#include <ATen/ATen.h>\n'
    done = check(tmp_path, **texts)
    assert done.returncode == (0 if own_header_is_whole else 1)
    assert bool(list(tmp_path.glob("precompiled-*.gch"))) == own_header_is_whole


def test_a_build_without_any_source_fails(tmp_path: Path) -> None:
    assert check(tmp_path).returncode == 1
