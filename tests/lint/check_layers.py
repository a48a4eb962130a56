# SPDX-License-Identifier: Apache-2.0
"""Holds the include directions of csrc/ARCHITECTURE.md.

The table of rooms there is read from the document itself, so that it cannot fall behind. Which
file may include which outside library stands here.

    python tests/lint/check_layers.py [root]     prints what is wrong; exit status 1 if anything is
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = "csrc/ARCHITECTURE.md"
TORCHSCRIPT_OPS = "torchscript_ops"
# The program stands outside of the library, as the Python package does. It needs no torch, so of
# the rooms that do it may include what was written to be known without.
COMMAND_LINE = "command_line"
COMMAND_LINE_MAY_INCLUDE = frozenset({"cache", "store", "policy", "codec", "fs", "base"})
DIAGNOSIS = "command_line/diagnosis.cpp"  # asks the system about the machine
TORCH_FREE_HEADERS = ("tensor/value_header.h",)

_TABLE_ROW = re.compile(r"^\|\s*`(?:csrc/)?(\w+)/`\s*\|[^|]*\|([^|]*)\|[^|]*\|$", re.MULTILINE)
_FILE_CALL = re.compile(
    r"(?<![\w>])(?:std)?::(access|creat|fdatasync|fopen|fsync|ftruncate|link|mkdir|open|opendir|"
    r"p?read|p?write|readlink|realpath|rename|rmdir|stat|statvfs|symlink|truncate|unlink)\("
)
_FILE_ROOM = "fs"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """An outside library: how its headers are called, and the files that may include them."""

    name: str
    headers: re.Pattern[str]
    may_include: re.Pattern[str]
    files_at_most: int | None = None


LIBRARIES = [
    Library(
        "torch",
        re.compile(r"(torch|ATen|c10|caffe2)/"),
        re.compile(r"(csrc/(tensor|module)|torchscript_ops)/"),
    ),
    Library(
        "SQLite", re.compile(r"sqlite3\w*\.h$"), re.compile(r"csrc/store/index/database\.(h|cpp)$")
    ),
    Library("cereal", re.compile(r"cereal/"), re.compile(r"csrc/store/(\w+/)?\w+\.cpp$"), 1),
    Library("libsodium", re.compile(r"sodium(\.h$|/)"), re.compile(r"csrc/base/hash\.cpp$")),
    Library("Zstandard", re.compile(r"zstd\w*\.h$"), re.compile(r"csrc/codec/zstd_codec\.cpp$")),
    Library("xxHash", re.compile(r"xxh\w*\.h$"), re.compile(r"csrc/base/hash\.cpp$")),
    Library(
        "JSON",
        re.compile(r"nlohmann/"),
        re.compile(
            r"(torchscript_ops/model_settings|command_line/(installation|manifest|report))\.cpp$"
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


def rooms_of(architecture: str) -> dict[str, frozenset[str]]:
    """What each room may include besides itself, as the document's table says."""
    cells = dict(_TABLE_ROW.findall(architecture))
    rooms = {room: frozenset(re.findall(r"\w+", cell)) for room, cell in cells.items()}
    everything = frozenset(rooms)
    return {room: everything - {room} if "all" in below else below for room, below in rooms.items()}


def sources_of(root: Path) -> Iterator[Path]:
    """The C++ files of the library and of the program."""
    for folder in ("csrc", TORCHSCRIPT_OPS, COMMAND_LINE):
        yield from sorted(p for p in (root / folder).rglob("*") if p.suffix in (".h", ".cpp"))


def room_of(path: Path, root: Path) -> str:
    """`csrc/<room>/file`, torchscript_ops, or command_line."""
    parts = path.relative_to(root).parts
    return parts[0] if parts[0] in (TORCHSCRIPT_OPS, COMMAND_LINE) else parts[1]


def faults(root: Path) -> list[str]:
    """One line for each include that is against the rules; empty when all is well."""
    rooms = rooms_of((root / ARCHITECTURE).read_text(encoding="utf-8"))
    found = [
        f"{ARCHITECTURE}: room '{room}' may include '{other}', which is no room"
        for room, below in rooms.items()
        for other in sorted(below - set(rooms))
    ]
    found += [
        f"{ARCHITECTURE}: there is a cycle between '{room}' and '{other}'"
        for room, below in rooms.items()
        for other in sorted(below & set(rooms))
        if room in rooms[other]
    ]
    users: dict[str, list[str]] = {}
    rooms = {**rooms, COMMAND_LINE: COMMAND_LINE_MAY_INCLUDE}
    for path in sources_of(root):
        name = path.relative_to(root).as_posix()
        room = room_of(path, root)
        if room not in rooms:
            found.append(f"{name}: the table of {ARCHITECTURE} has no room '{room}'")
            continue
        text = path.read_text(encoding="utf-8")
        if room != _FILE_ROOM and name != DIAGNOSIS:
            found += [
                f"{name}: ::{call}() is file work, for which there is fs::FileSystem"
                for call in _FILE_CALL.findall(text)
            ]
        for quote, header in _INCLUDE.findall(text):
            found += _faults_of_include(name, room, quote, header, rooms)
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


def _faults_of_include(
    name: str, room: str, quote: str, header: str, rooms: dict[str, frozenset[str]]
) -> Iterator[str]:
    target = header.split("/")[0] if "/" in header else None
    if target in rooms:
        is_torch_free = room == COMMAND_LINE and header in TORCH_FREE_HEADERS
        if target != room and target not in rooms[room] and not is_torch_free:
            yield f"{name}: room '{room}' may not include '{header}'"
    elif quote == '"' and not (room == TORCHSCRIPT_OPS and target is None):
        yield f'{name}: "{header}" should be included by its room, or in <> if it is not ours'
    for library in LIBRARIES:
        if library.headers.match(header) and not library.may_include.match(name):
            yield f"{name}: {library.name} ('{header}') is not for this file"


def main() -> int:
    found = faults(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
