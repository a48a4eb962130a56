# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from check_layers import ROOT, faults, rooms_of
from planting import Write

pytest_plugins = ["planting"]


def test_this_tree_keeps_the_layers() -> None:
    assert faults(ROOT) == []


def test_the_table_names_every_room() -> None:
    rooms = rooms_of((ROOT / "csrc/ARCHITECTURE.md").read_text(encoding="utf-8"))
    folders = {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert set(rooms) == folders | {"torchscript_ops"}
    assert rooms["base"] == frozenset()
    assert rooms["torchscript_ops"] == set(rooms) - {"torchscript_ops"}


def test_an_empty_tree_has_no_fault(tree: Path) -> None:
    assert faults(tree) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("csrc/base/a.h", '#include "store/store.h"'),
        ("csrc/base/a.h", "#include <store/store.h>"),
        ("csrc/store/a.cpp", '#  include "cache/cache.h"'),
        ("csrc/module/a.cpp", '#include "store/store.h"'),
        ("csrc/tensor/a.cpp", '#include "module/source.h"'),
        ("csrc/cache/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("csrc/base/a.cpp", "#include <c10/util/Logging.h>"),
        ("csrc/store/index/index.cpp", "#include <sqlite3.h>"),
        ("csrc/cache/a.cpp", "#include <sodium.h>"),
        ("csrc/tensor/a.cpp", "#include <xxhash.h>"),
        ("csrc/tensor/a.cpp", "#include <zstd.h>"),
        ("csrc/codec/codec.cpp", "#include <zstd_errors.h>"),
        ("csrc/codec/a.cpp", '#include "cache/settings.h"'),
        ("csrc/store/a.cpp", '#include "codec/codec.h"'),
        ("csrc/cache/a.cpp", "#include <cereal/cereal.hpp>"),
        ("torchscript_ops/a.cpp", "#include <nlohmann/json.hpp>"),
        ("torchscript_ops/a.cpp", "#include <Python.h>"),
        ("torchscript_ops/a.cpp", "#include <torch/csrc/utils/pybind.h>"),
        ("csrc/cache/a.cpp", '#include "cache.h"'),
        ("csrc/attic/a.cpp", "#include <vector>"),
        ("csrc/store/notes.cpp", "#include <fstream>"),
        ("csrc/cache/a.cpp", "#include <sys/stat.h>"),
        ("csrc/cache/a.cpp", "#include <filesystem>"),
        ("command_line/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("command_line/a.cpp", '#include "tensor/layout.h"'),
        ("command_line/commands/ls.cpp", "#include <CLI/CLI.hpp>"),
        ("command_line/commands/ls.cpp", "#include <nlohmann/json.hpp>"),
        ("command_line/a.cpp", "#include <sqlite3.h>"),
        ("command_line/a.cpp", '#include "table.h"'),
        ("csrc/cache/a.cpp", '#include "command_line/units.h"'),
        ("torchscript_ops/a.cpp", '#include "command_line/units.h"'),
    ],
)
def test_a_wrong_include_is_found(tree: Path, write: Write, name: str, line: str) -> None:
    write(name, f"#include <string>\n{line}\n")
    (fault,) = faults(tree)
    assert fault.startswith(name)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("csrc/store/index/database.cpp", "#include <sqlite3.h>"),
        ("csrc/store/a.cpp", '#include "base/status.h"'),
        ("csrc/base/a.cpp", '#include "base/status.h"'),
        ("csrc/tensor/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("torchscript_ops/a.cpp", '#include "module/source.h"'),
        ("torchscript_ops/a.cpp", '#include "version.h"'),
        ("csrc/base/hash.cpp", "#include <xxhash.h>"),
        ("csrc/codec/zstd_codec.cpp", "#include <zstd.h>"),
        ("csrc/tensor/a.cpp", '#include "codec/codec.h"'),
        ("csrc/cache/a.cpp", '#include "codec/codec.h"'),
        ("command_line/commands/ls.cpp", '#include "command_line/report.h"'),
        ("command_line/a.cpp", '#include "store/listing.h"'),
        ("command_line/a.cpp", '#include "tensor/value_header.h"'),
        ("command_line/arguments.cpp", "#include <CLI/CLI.hpp>"),
        ("command_line/report.cpp", "#include <nlohmann/json.hpp>"),
    ],
)
def test_a_right_include_is_none(tree: Path, write: Write, name: str, line: str) -> None:
    write(name, f"{line}\n")
    assert faults(tree) == []


@pytest.mark.parametrize(
    "call", ["::open(path, 0)", "::unlink(path)", "::stat(path, &facts)", "std::rename(a, b)"]
)
def test_file_work_beside_the_seam_is_found(tree: Path, write: Write, call: str) -> None:
    write("csrc/fs/a.cpp", f"{call};\n")
    assert faults(tree) == []
    write("csrc/store/a.cpp", f"{call};\n")
    (fault,) = faults(tree)
    assert fault.startswith("csrc/store/a.cpp: ::")
    write("csrc/store/a.cpp", "Database::open(path); files.open(path); Doomed::unlink(x);\n")
    assert faults(tree) == []


def test_cereal_in_a_second_file_is_found(tree: Path, write: Write) -> None:
    write("csrc/store/segment/record.cpp", "#include <cereal/cereal.hpp>\n")
    assert faults(tree) == []
    write("csrc/store/other.cpp", "#include <cereal/archives/binary.hpp>\n")
    (fault,) = faults(tree)
    assert "csrc/store/other.cpp, csrc/store/segment/record.cpp" in fault


def test_a_cycle_in_the_table_is_found(tree: Path, write: Write) -> None:
    write(
        "csrc/ARCHITECTURE.md",
        "| `csrc/a/` | one | b | - |\n| `csrc/b/` | two | a, c | - |\n",
    )
    found = faults(tree)
    assert any("cycle between 'a' and 'b'" in fault for fault in found)
    assert any("'c', which is no room" in fault for fault in found)
