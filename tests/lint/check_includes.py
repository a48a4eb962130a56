# SPDX-License-Identifier: Apache-2.0
"""Compiles each source by itself, without making an object, so that a missing include shows.

    python tests/lint/check_includes.py BUILD [folder of sources...]

BUILD has a compile_commands.json; sources that it joins into one are compiled one by one here.
Without folders all sources of the tree are.

A source that brings one of the large headers of others gets it precompiled: where its own header
brings it, and where a source without a header of its own includes it. A missing include of what
that one header has (ATen, GoogleTest, the standard library) does not show in such a source.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from compiled_units import Unit, threads, units_of
from tree_check import ROOT

FOLDERS = ("csrc", "torchscript_ops", "command_line", "triton_cache", "python_shim", "tests")
# The largest first: a source gets the first one that it brings.
_LARGE = (
    "ATen/ATen.h",
    "ATen/core/ivalue.h",
    "ATen/core/Tensor.h",
    "gmock/gmock.h",
    "gtest/gtest.h",
)
_LEAST = 5  # sources for which precompiling pays
_INCLUDE = re.compile(r'^#include ([<"])([^>"]+)[>"]', re.MULTILINE)


class Source(NamedTuple):
    path: Path
    folder: str  # in which the compiler runs
    command: tuple[str, ...]  # without the source and the output
    large: str  # the header that it may get precompiled; "": none


class Includes:
    """Which headers a file brings, through headers of the tree too."""

    def __init__(self) -> None:
        self._brought: dict[Path, frozenset[str]] = {}

    def brought(self, path: Path, folders: list[Path]) -> frozenset[str]:
        """The large headers that the file brings."""
        if path not in self._brought:
            self._brought[path] = frozenset()  # where headers include each other in a circle
            headers: set[str] = set()
            for quote, name in includes_of(path):
                inner = found(name, path, folders) if quote == '"' else None
                headers |= self.brought(inner, folders) if inner else {name}
            self._brought[path] = frozenset(headers.intersection(_LARGE))
        return self._brought[path]

    def large_of(self, path: Path, command: tuple[str, ...]) -> str:
        folders = [Path(word[2:]) for word in command if word.startswith("-I")]
        includes = includes_of(path)
        brought = {name for _, name in includes}
        if includes and Path(includes[0][1]).stem == path.stem:
            own = found(includes[0][1], path, folders)
            brought = set(self.brought(own, folders)) if own else set()
        return next((name for name in _LARGE if name in brought), "")


def includes_of(path: Path) -> list[tuple[str, str]]:
    """The quotation mark and the name of each include, in their order."""
    return _INCLUDE.findall(path.read_text(encoding="utf-8"))


def found(name: str, includer: Path, folders: list[Path]) -> Path | None:
    paths = [folder / name for folder in (includer.parent, *folders)]
    return next((path for path in paths if path.exists()), None)


def sources_of(units: list[Unit]) -> list[Source]:
    includes = Includes()
    sources = []
    for unit in units:
        command = (*(word for word in unit.command if not word.startswith("-O")), "-O0")
        for path in unit.sources:
            sources.append(Source(path, unit.folder, command, includes.large_of(path, command)))
    return sources


def ran(source: Source, *more: str) -> str:
    """Runs the compiler, and returns what it says of an error; "": there is none."""
    command = [*source.command, *more]
    done = subprocess.run(command, cwd=source.folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{source.path}:\n{done.stdout}{done.stderr}"


def precompiled(sources: list[Source], folder: Path) -> dict[tuple[object, ...], Path]:
    """Precompiles each large header for each command with enough sources that bring it."""
    groups: dict[tuple[object, ...], list[Source]] = defaultdict(list)
    for source in sources:
        if source.large:
            groups[source.command, source.large].append(source)
    worth = {key: group[0] for key, group in groups.items() if len(group) >= _LEAST}

    def made(numbered: tuple[int, Source]) -> Path | None:
        number, source = numbered
        header = folder / f"precompiled-{number}.h"
        header.write_text(f"#include <{source.large}>\n", encoding="utf-8")
        said = ran(source, "-x", "c++-header", str(header), "-o", f"{header}.gch")
        return None if said else header

    with ThreadPoolExecutor(threads()) as pool:
        headers = list(pool.map(made, enumerate(worth.values())))
    return {key: header for key, header in zip(worth, headers, strict=True) if header}


def faults(sources: list[Source], build: Path) -> Iterator[str]:
    headers = precompiled(sources, build)

    def fault_of(source: Source) -> str:
        header = headers.get((source.command, source.large))
        before = () if header is None else ("-include", str(header))
        return ran(source, *before, "-fsyntax-only", str(source.path))

    with ThreadPoolExecutor(threads()) as pool:
        yield from filter(None, pool.map(fault_of, sources))


def main(arguments: list[str]) -> int:
    build, *folders = [Path(argument).resolve() for argument in arguments]
    folders = folders or [ROOT / name for name in FOLDERS]
    sources = sources_of(units_of(build, folders))
    count = 0
    for fault in faults(sources, build):
        print(fault, flush=True)
        count += 1
    print(f"{len(sources) - count} of {len(sources)} sources compile by themselves")
    return 1 if count > 0 or not sources else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
