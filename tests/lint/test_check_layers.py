# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import check_layers
import pytest
from check_layers import components_of, faults, subcomponent_of, subcomponents_of
from planting import Write
from tree_check import ROOT

pytest_plugins = ["planting"]


def test_this_tree_keeps_the_layers() -> None:
    assert faults(ROOT) == []


def test_the_table_names_every_component() -> None:
    components = components_of((ROOT / "tests/lint/layers.md").read_text(encoding="utf-8"))
    folders = {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert set(components) == folders | {"torchscript_ops"}
    assert components["base"] == frozenset()
    assert components["torchscript_ops"] == set(components) - {"torchscript_ops"}


def test_no_include_goes_up_in_a_divided_component() -> None:
    assert not check_layers.BACK_EDGES


def test_an_empty_tree_has_no_fault(tree: Path) -> None:
    assert faults(tree) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("csrc/base/a.h", '#include "store/store.h"'),
        ("csrc/base/a.h", "#include <store/store.h>"),
        ("csrc/store/a.cpp", '#  include "cache/cache.h"'),
        ("csrc/module/call/a.cpp", '#include "store/store.h"'),
        ("csrc/tensor/a.cpp", '#include "module/code/source.h"'),
        ("csrc/module/watch/a.cpp", '#include "module/call/call.h"'),
        ("csrc/module/call/a.cpp", '#include "module/identity/identity.h"'),
        ("csrc/module/call/a.cpp", "#include <torch/csrc/jit/api/module.h>"),
        ("csrc/module/identity/a.cpp", "#include <torch/script.h>"),
        ("csrc/tensor/a.cpp", "torch::jit::Stack stack;"),
        ("torchscript_ops/a.cpp", "namespace jit = torch::jit;"),
        ("torchscript_ops/include/modcache/cache.h", "#include <torch/csrc/jit/api/module.h>"),
        ("csrc/cache/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("csrc/base/a.cpp", "#include <c10/util/Logging.h>"),
        ("csrc/store/index/index.cpp", "#include <sqlite3.h>"),
        ("csrc/cache/a.cpp", "#include <sodium.h>"),
        ("csrc/tensor/a.cpp", "#include <xxhash.h>"),
        ("csrc/tensor/a.cpp", "#include <zstd.h>"),
        ("csrc/codec/a.cpp", "#include <zstd_errors.h>"),
        ("csrc/codec/a.cpp", '#include "cache/settings.h"'),
        ("csrc/store/a.cpp", '#include "codec/codec.h"'),
        ("csrc/cache/a.cpp", "#include <cereal/cereal.hpp>"),
        ("torchscript_ops/a.cpp", "#include <nlohmann/json.hpp>"),
        ("torchscript_ops/a.cpp", "#include <Python.h>"),
        ("torchscript_ops/a.cpp", "#include <torch/csrc/utils/pybind.h>"),
        ("csrc/cache/a.cpp", '#include "cache.h"'),
        ("csrc/attic/a.cpp", "#include <vector>"),
        ("csrc/store/directory/notes.cpp", "#include <fstream>"),
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
        ("triton_cache/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("triton_cache/a.cpp", '#include "store/store.h"'),
        ("triton_cache/response.cpp", "#include <nlohmann/json.hpp>"),
        ("csrc/cache/a.cpp", '#include "triton_cache/plugin.h"'),
        ("command_line/a.cpp", '#include "triton_cache/plugin.h"'),
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
        ("torchscript_ops/a.cpp", '#include "module/code/source.h"'),
        ("torchscript_ops/a.cpp", '#include "version.h"'),
        ("csrc/module/scripted/a.cpp", '#include "module/identity/identity.h"'),
        ("csrc/module/code/a.cpp", "#include <torch/csrc/jit/ir/ir.h>  // torch::jit::Graph"),
        ("csrc/module/lowered/a.cpp", "using torch::jit::Node;"),
        ("torchscript_ops/a.cpp", "// once torch::jit::Stack"),
        ("torchscript_ops/include/modcache/scripted.h", "torch::jit::Module f();"),
        ("csrc/base/hash.cpp", "#include <xxhash.h>"),
        ("csrc/codec/codec.cpp", "#include <zstd.h>"),
        ("csrc/tensor/a.cpp", '#include "codec/codec.h"'),
        ("csrc/cache/a.cpp", '#include "codec/codec.h"'),
        ("command_line/commands/ls.cpp", '#include "command_line/report.h"'),
        ("command_line/a.cpp", '#include "store/listing/listing.h"'),
        ("command_line/a.cpp", '#include "tensor/value_header.h"'),
        ("command_line/arguments.cpp", "#include <CLI/CLI.hpp>"),
        ("command_line/report.cpp", "#include <nlohmann/json.hpp>"),
        ("triton_cache/a.cpp", '#include "cache/cache.h"'),
        ("triton_cache/a.cpp", '#include "tensor/value_header.h"'),
        ("triton_cache/plugin.cpp", "#include <nlohmann/json.hpp>"),
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
        "tests/lint/layers.md",
        "| `csrc/a/` | one | b | - |\n| `csrc/b/` | two | a, c | - |\n",
    )
    found = faults(tree)
    assert any("cycle between 'a' and 'b'" in fault for fault in found)
    assert any("'c', which is no component" in fault for fault in found)
    write(
        "tests/lint/layers.md",
        "| `csrc/a/` | one | b | - |\n| `csrc/b/` | two | c | - |\n| `csrc/c/` | three | a | - |\n",
    )
    assert any("cycle between 'a' and 'b' and 'c'" in fault for fault in faults(tree))


COMPONENTS = (
    "| `csrc/a/` | one | b | - |\n| `csrc/b/` | two | - | - |\n| `csrc/base/` | three | - | - |\n"
)
SUBCOMPONENTS = """
| `a/` | the top | all |
| `a/write/` | writes | read, types.h |
| `csrc/a/read/` | reads | types.h |
| `a/read/fast/` | a folder of a folder | - |
| `a/types.h` | one header and its source | - |
"""


@pytest.fixture
def divided(tree: Path, write: Write) -> Path:
    """A tree whose component `a` is divided."""
    write("tests/lint/layers.md", COMPONENTS + SUBCOMPONENTS)
    return tree


def test_subcomponents_are_read_from_the_document() -> None:
    tables = subcomponents_of(COMPONENTS + SUBCOMPONENTS + "| `no_component/part/` | text | - |\n")
    assert set(tables) == {"a"}
    assert tables["a"] == {
        "a": {"write", "read", "read/fast", "types.h"},
        "write": {"read", "types.h"},
        "read": {"types.h"},
        "read/fast": set(),
        "types.h": set(),
    }
    assert components_of(COMPONENTS + SUBCOMPONENTS) == {"a": {"b"}, "b": set(), "base": set()}
    places = {
        "a/open.cpp": "a",
        "a/types.cpp": "types.h",
        "a/read/read.h": "read",
        "a/read/deep/read.h": "read",
        "a/read/fast/read.h": "read/fast",
        "a/attic/read.h": None,
    }
    assert {name: subcomponent_of(name, tables["a"]) for name in places} == places


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("csrc/a/read/read.cpp", "a/write/write.h"),
        ("csrc/a/read/read.cpp", "a/open.h"),
        ("csrc/a/read/read.cpp", "a/read/fast/way.h"),
        ("csrc/a/write/write.h", "a/open.h"),
        ("csrc/a/types.cpp", "a/read/read.h"),
    ],
)
def test_an_include_up_in_a_divided_component_is_found(
    divided: Path, write: Write, name: str, header: str
) -> None:
    write(name, f'#include "{header}"\n')
    (fault,) = faults(divided)
    assert fault.startswith(f"{name}: subcomponent")
    assert fault.endswith(f"may not include '{header}'")


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("csrc/a/open.cpp", "a/write/write.h"),
        ("csrc/a/open.cpp", "a/open.h"),
        ("csrc/a/write/write.cpp", "a/read/read.h"),
        ("csrc/a/write/write.cpp", "a/write/queue.h"),
        ("csrc/a/read/read.cpp", "a/types.h"),
        ("csrc/a/types.cpp", "a/types.h"),
        ("csrc/a/read/read.cpp", "b/b.h"),
        ("csrc/b/b.cpp", "b/attic/b.h"),
    ],
)
def test_an_include_down_in_a_divided_component_is_none(
    divided: Path, write: Write, name: str, header: str
) -> None:
    write(name, f'#include "{header}"\n')
    assert faults(divided) == []


def test_a_file_in_no_sub_component_is_found(divided: Path, write: Write) -> None:
    write("csrc/a/attic/old.cpp", "#include <vector>\n")
    (fault,) = faults(divided)
    assert fault.startswith("csrc/a/attic/old.cpp: ")
    write("tests/lint/layers.md", COMPONENTS + "| `a/attic/` | the only subcomponent | - |\n")
    write("csrc/a/open.cpp", "#include <vector>\n")
    (fault,) = faults(divided)
    assert fault.startswith("csrc/a/open.cpp: ")


def test_a_circle_of_subcomponents_is_found(tree: Path, write: Write) -> None:
    write(
        "tests/lint/layers.md",
        COMPONENTS + "| `a/p/` | 1 | q |\n| `a/q/` | 2 | r |\n| `a/r/` | 3 | p, attic |\n",
    )
    found = faults(tree)
    assert any("cycle between 'p' and 'q' and 'r'" in fault for fault in found)
    assert any("'attic', which is no subcomponent of 'a'" in fault for fault in found)


def test_a_back_edge_stands_until_it_is_gone(
    divided: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = ("csrc/a/read/read.cpp", "a/write/write.h")
    monkeypatch.setattr(check_layers, "BACK_EDGES", frozenset({edge}))
    write(edge[0], f'#include "{edge[1]}"\n')
    assert faults(divided) == []
    write(edge[0], '#include "a/types.h"\n')
    (fault,) = faults(divided)
    assert fault.startswith(f"{edge[0]}: no longer includes '{edge[1]}'")
