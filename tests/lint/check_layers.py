# SPDX-License-Identifier: Apache-2.0
"""Holds the include directions of tests/lint/layers.md.

The tables of components and of subcomponents are read from that document, so that they cannot fall
behind. Which file may include which outside library stands here.

A component of the first table may be divided. A row "| `store/segment/` | what it is | fs |" makes
that folder a subcomponent of `store`, which may include itself and the subcomponents of its last
cell, named without the component (or "all", or "-"). Files that lie directly in the component are
the subcomponent `store/`. A row may also name one header, `store/types.h`; its source belongs to
the same subcomponent. Every file of a divided component has to be in a subcomponent.

    python tests/lint/check_layers.py [root]     prints what is wrong; exit status 1 if anything is
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tree_check import circle_in, report

LAYERS = "tests/lint/layers.md"
TORCHSCRIPT_OPS = "torchscript_ops"
# The program and the cache for Triton stand outside of the library, as the Python package does.
# They need no torch, so of the components that do they may include what was written to be known
# without.
COMMAND_LINE = "command_line"
TRITON_CACHE = "triton_cache"
OUTSIDE = {
    COMMAND_LINE: frozenset({"cache", "store", "policy", "codec", "fs", "base"}),
    TRITON_CACHE: frozenset({"cache", "codec", "base"}),
}
DIAGNOSIS = "command_line/diagnosis.cpp"  # asks the system about the machine
TORCH_FREE_HEADERS = ("tensor/value_header.h",)

_TABLE_ROW = re.compile(r"^\|\s*`(?:csrc/)?(\w+)/`\s*\|[^|]*\|([^|]*)\|[^|]*\|$", re.MULTILINE)
_SUBCOMPONENT_ROW = re.compile(
    r"^\|\s*`(?:csrc/)?(\w+)/((?:\w+/)*(?:\w+\.h)?)`\s*\|[^|]*\|([^|]*)\|$", re.MULTILINE
)
# Includes between subcomponents that their table forbids and that still stand: (file, header).
# Nothing may be added; an entry that no file needs any more is a fault.
BACK_EDGES: frozenset[tuple[str, str]] = frozenset()
_FILE_CALL = re.compile(
    r"(?<![\w>])(?:std)?::(access|creat|fdatasync|fopen|fsync|ftruncate|link|mkdir|open|opendir|"
    r"p?read|p?write|readlink|realpath|rename|rmdir|stat|statvfs|symlink|truncate|unlink)\("
)
_FILE_COMPONENT = "fs"
_COMMENT = re.compile(r"//[^\n]*")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


# What each component, or each subcomponent of one component, may include besides itself.
Table = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Library:
    """An outside library: how its headers are called, and the files that may include them."""

    name: str
    headers: re.Pattern[str]
    may_include: re.Pattern[str]
    files_at_most: int | None = None
    text: re.Pattern[str] | None = None  # what else only those files may contain, comments aside


LIBRARIES = [
    Library(
        "torch",
        re.compile(r"(torch|ATen|c10|caffe2)/"),
        re.compile(r"(csrc/(tensor|module)|torchscript_ops)/"),
    ),
    # It is deprecated and will go; what needs it can be left out (MODCACHE_WITH_TORCHSCRIPT).
    Library(
        "TorchScript",
        re.compile(r"torch/(csrc/jit/|script\.h$)"),
        re.compile(
            r"(csrc/module/(code|scripted|lowered)/\w+|torchscript_ops/lower"
            r"|torchscript_ops/include/modcache/scripted)\.(h|cpp)$"
        ),
        text=re.compile(r"\btorch::jit\b"),
    ),
    Library(
        "SQLite", re.compile(r"sqlite3\w*\.h$"), re.compile(r"csrc/store/index/database\.(h|cpp)$")
    ),
    Library("cereal", re.compile(r"cereal/"), re.compile(r"csrc/store/(\w+/)?\w+\.cpp$"), 1),
    Library("libsodium", re.compile(r"sodium(\.h$|/)"), re.compile(r"csrc/base/hash\.cpp$")),
    Library("Zstandard", re.compile(r"zstd\w*\.h$"), re.compile(r"csrc/codec/codec\.cpp$")),
    Library("libvalkey", re.compile(r"valkey/"), re.compile(r"csrc/backends/redis/\w+\.(h|cpp)$")),
    Library("OpenSSL", re.compile(r"openssl/"), re.compile(r"csrc/backends/redis/tls\.cpp$")),
    Library("xxHash", re.compile(r"xxh\w*\.h$"), re.compile(r"csrc/base/hash\.cpp$")),
    Library(
        "JSON",
        re.compile(r"nlohmann/"),
        re.compile(
            r"(torchscript_ops/model_settings|command_line/(directory_page|installation|manifest|report)"
            r"|triton_cache/plugin)\.cpp$"
        ),
    ),
    Library("CLI11", re.compile(r"CLI/"), re.compile(r"command_line/(arguments|program)\.cpp$")),
    # All file work goes through fs::FileSystem, where tests put faults. The others look at paths
    # or at a model's own files, or take or read memory.
    Library(
        "file work, for which there is fs::FileSystem,",
        re.compile(
            r"(filesystem|fstream|(fcntl|dirent|sys/(file|mman|stat|statfs|statvfs|uio|vfs))\.h)$"
        ),
        re.compile(
            r"(csrc/(fs/\w+|base/own_memory|cache/settings|tensor/output_buffer)|torchscript_ops/model_settings"
            r"|command_line/(arguments|diagnosis|installation))"
            r"\.(h|cpp)$"
        ),
    ),
    Library("Python", re.compile(r"(Python\.h$|pybind11/|torch/csrc/utils/py)"), re.compile(r"$^")),
]


def _table_of(cells: Mapping[str, str]) -> dict[str, frozenset[str]]:
    named = {
        name: frozenset(word.strip("/") for word in re.findall(r"[\w./]+", cell))
        for name, cell in cells.items()
    }
    everything = frozenset(named)
    return {name: everything - {name} if "all" in below else below for name, below in named.items()}


def components_of(architecture: str) -> dict[str, frozenset[str]]:
    """What each component may include besides itself, as the document's table says."""
    return _table_of(dict(_TABLE_ROW.findall(architecture)))


def subcomponents_of(architecture: str) -> dict[str, Table]:
    """For each divided component, what each of its subcomponents may include besides itself.

    A subcomponent's name is its path within the component; for files directly in the component,
    the component's own.
    """
    cells: dict[str, dict[str, str]] = {}
    for component, place, below in _SUBCOMPONENT_ROW.findall(architecture):
        cells.setdefault(component, {})[place.rstrip("/") or component] = below
    components = components_of(architecture)
    return {
        component: _table_of(rows) for component, rows in cells.items() if component in components
    }


def subcomponent_of(name: str, table: Table) -> str | None:
    """The subcomponent of a file such as "store/segment/record.cpp"; None if the table has none."""
    component, *folders, file = PurePosixPath(name).parts
    header = "/".join([*folders, PurePosixPath(file).with_suffix(".h").name])
    if header in table:
        return header
    for depth in range(len(folders), 0, -1):
        if (folder := "/".join(folders[:depth])) in table:
            return folder
    return component if not folders and component in table else None


def sources_of(root: Path) -> Iterator[Path]:
    """The C++ files of the library, of the program and of the cache for Triton."""
    for folder in ("csrc", TORCHSCRIPT_OPS, *OUTSIDE):
        yield from sorted(p for p in (root / folder).rglob("*") if p.suffix in (".h", ".cpp"))


def component_of(path: Path, root: Path) -> str:
    """`csrc/<component>/file`, torchscript_ops, or what stands outside."""
    parts = path.relative_to(root).parts
    return parts[0] if parts[0] in (TORCHSCRIPT_OPS, *OUTSIDE) else parts[1]


def faults(root: Path) -> list[str]:
    """One line for each include that is against the rules; empty when all is well."""
    components = components_of((root / LAYERS).read_text(encoding="utf-8"))
    found = [*_faults_of_table("component", components), *_faults_of_subcomponents(root)]
    users: dict[str, list[str]] = {}
    components = {**components, **OUTSIDE}
    for path in sources_of(root):
        name = path.relative_to(root).as_posix()
        component = component_of(path, root)
        if component not in components:
            found.append(f"{name}: the table of {LAYERS} has no component '{component}'")
            continue
        text = path.read_text(encoding="utf-8")
        if component != _FILE_COMPONENT and name != DIAGNOSIS:
            found += [
                f"{name}: ::{call}() is file work, for which there is fs::FileSystem"
                for call in _FILE_CALL.findall(text)
            ]
        found += _faults_of_text(name, text)
        for quote, header in _INCLUDE.findall(text):
            found += _faults_of_include(name, component, quote, header, components)
            for library in LIBRARIES:
                if library.headers.match(header) and name not in users.setdefault(library.name, []):
                    users[library.name].append(name)
    for library in LIBRARIES:
        names = users.get(library.name, [])
        if library.files_at_most is not None and len(names) > library.files_at_most:
            found.append(
                f"{library.name} is included by {len(names)} files, and "
                f"{library.files_at_most} may: {', '.join(names)}"
            )
    return found


def _faults_of_table(kind: str, table: Table) -> Iterator[str]:
    for name, below in table.items():
        for other in sorted(below - set(table)):
            yield f"{LAYERS}: {kind} '{name}' may include '{other}', which is no {kind}"
    if circle := circle_in(table):
        names = " and ".join(f"'{name}'" for name in sorted(set(circle)))
        yield f"{LAYERS}: there is a cycle between {names}"


def _faults_of_subcomponents(root: Path) -> Iterator[str]:
    tables = subcomponents_of((root / LAYERS).read_text(encoding="utf-8"))
    for component, table in tables.items():
        yield from _faults_of_table(f"subcomponent of '{component}',", table)
    forbidden = set()
    for path in sources_of(root):
        name = path.relative_to(root).as_posix()
        if not (table := tables.get(component_of(path, root), {})):
            continue
        if (subcomponent := subcomponent_of(name.removeprefix("csrc/"), table)) is None:
            yield f"{name}: the tables of {LAYERS} have no subcomponent for this file"
            continue
        for header in _forbidden_within(path, component_of(path, root), subcomponent, table):
            forbidden.add((name, header))
            if (name, header) not in BACK_EDGES:
                yield f"{name}: subcomponent '{subcomponent}' may not include '{header}'"
    for name, header in sorted(BACK_EDGES - forbidden):
        if (root / name).exists():
            yield f"{name}: no longer includes '{header}', so BACK_EDGES should not list it"


def _forbidden_within(path: Path, component: str, subcomponent: str, table: Table) -> Iterator[str]:
    """The headers of `component` that the file includes and its subcomponent may not."""
    for _, header in _INCLUDE.findall(path.read_text(encoding="utf-8")):
        if header.startswith(f"{component}/"):
            target = subcomponent_of(header, table)
            if target not in {None, subcomponent} | table[subcomponent]:
                yield header


def _faults_of_include(
    name: str, component: str, quote: str, header: str, components: dict[str, frozenset[str]]
) -> Iterator[str]:
    target = header.split("/")[0] if "/" in header else None
    if target in components:
        is_torch_free = component in OUTSIDE and header in TORCH_FREE_HEADERS
        if target != component and target not in components[component] and not is_torch_free:
            yield f"{name}: component '{component}' may not include '{header}'"
    elif quote == '"' and not (component == TORCHSCRIPT_OPS and target is None):
        yield f'{name}: "{header}" should be included by its component, or in <> if it is not ours'
    for library in LIBRARIES:
        if library.headers.match(header) and not library.may_include.match(name):
            yield f"{name}: {library.name} ('{header}') is not for this file"


def _faults_of_text(name: str, text: str) -> Iterator[str]:
    code = _COMMENT.sub("", text)
    for library in LIBRARIES:
        if library.text is None or library.may_include.match(name):
            continue
        for word in sorted(set(library.text.findall(code))):
            yield f"{name}: {library.name} ('{word}') is not for this file"


if __name__ == "__main__":
    sys.exit(report(faults))
