# SPDX-License-Identifier: Apache-2.0
"""Compiles each test by itself, without making an object, so that a missing include shows.

    python tests/lint/check_includes.py BUILD [folder of sources...]

BUILD has a compile_commands.json of a build that compiles sources one by one. Without folders it is
tests/: clang-tidy reads every other source by itself already.

Sources that include <ATen/ATen.h> get it from a precompiled header, which takes half their time. A
missing include of what that header has (ATen, the standard library) does not show in them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tree_check import ROOT

_PRECOMPILED = "#include <ATen/ATen.h>\n"
_LEAST = 5  # sources for which precompiling pays


class Source(NamedTuple):
    path: Path
    folder: str  # in which the compiler runs
    command: tuple[str, ...]  # without the source and the output
    has_precompiled: bool  # it includes what is precompiled


def source_of(entry: dict[str, Any]) -> Source:
    command = shlex.split(entry["command"])
    for option in ("-o", "-c"):  # the output, and the source
        place = command.index(option)
        del command[place : place + 2]
    command = [word for word in command if not word.startswith("-O")]
    path = Path(entry["file"])
    has_precompiled = _PRECOMPILED in path.read_text(encoding="utf-8")
    return Source(path, entry["directory"], (*command, "-O0"), has_precompiled)


def ran(source: Source, *more: str) -> str:
    """Runs the compiler, and returns what it says of an error; "": there is none."""
    command = [*source.command, *more]
    done = subprocess.run(command, cwd=source.folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{source.path}:\n{done.stdout}{done.stderr}"


def commands_of(build: Path, folders: list[Path]) -> list[dict[str, Any]]:
    """The entries of the sources in ``folders``; empty where the build has none of them."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    return [
        entry
        for entry in entries
        if any(Path(entry["file"]).resolve().is_relative_to(folder) for folder in folders)
    ]


def precompiled(sources: list[Source], folder: Path) -> dict[tuple[str, ...], Path]:
    """Precompiles a header for each command with enough sources that include it themselves."""
    counts: dict[tuple[str, ...], list[Source]] = defaultdict(list)
    for source in sources:
        if source.has_precompiled:
            counts[source.command].append(source)
    made = {}
    for number, (command, group) in enumerate(counts.items()):
        header = folder / f"precompiled-{number}.h"
        header.write_text(_PRECOMPILED, encoding="utf-8")
        output = f"{header}.gch"
        if len(group) >= _LEAST and not ran(
            group[0], "-x", "c++-header", str(header), "-o", output
        ):
            made[command] = header
    return made


def faults(sources: list[Source], build: Path) -> Iterator[str]:
    headers = precompiled(sources, build)

    def fault_of(source: Source) -> str:
        header = headers.get(source.command) if source.has_precompiled else None
        before = () if header is None else ("-include", str(header))
        return ran(source, *before, "-fsyntax-only", str(source.path))

    with ThreadPoolExecutor(int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"))) as threads:
        yield from filter(None, threads.map(fault_of, sources))


def main(arguments: list[str]) -> int:
    build, *folders = [Path(argument).resolve() for argument in arguments]
    sources = [source_of(entry) for entry in commands_of(build, folders or [ROOT / "tests"])]
    count = 0
    for fault in faults(sources, build):
        print(fault, flush=True)
        count += 1
    print(f"{len(sources) - count} of {len(sources)} sources compile by themselves")
    return 1 if count > 0 or not sources else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
