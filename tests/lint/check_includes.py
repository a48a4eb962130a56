# SPDX-License-Identifier: Apache-2.0
"""Compiles each test by itself, without making an object, so that a missing include shows.

    python tests/lint/check_includes.py BUILD [folder of sources...]

BUILD has a compile_commands.json of a build that compiles sources one by one. Without folders it is
tests/: clang-tidy reads every other source by itself already.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tree_check import ROOT


def commands_of(build: Path, folders: list[Path]) -> list[dict[str, Any]]:
    """The entries of the sources in ``folders``; empty where the build has none of them."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    return [
        entry
        for entry in entries
        if any(Path(entry["file"]).resolve().is_relative_to(folder) for folder in folders)
    ]


def fault_of(entry: dict[str, Any]) -> str:
    """What the compiler says of one source; empty if that is nothing."""
    command = shlex.split(entry["command"])
    output = command.index("-o")
    del command[output : output + 2]
    command = [word for word in command if not word.startswith("-O")]
    done = subprocess.run(
        [*command, "-O0", "-fsyntax-only"],
        cwd=entry["directory"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"{entry['file']}:\n{done.stdout}{done.stderr}"


def faults(entries: list[dict[str, Any]]) -> Iterator[str]:
    with ThreadPoolExecutor(int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"))) as threads:
        yield from filter(None, threads.map(fault_of, entries))


def main(arguments: list[str]) -> int:
    build, *folders = [Path(argument).resolve() for argument in arguments]
    entries = commands_of(build, folders or [ROOT / "tests"])
    count = 0
    for fault in faults(entries):
        print(fault, flush=True)
        count += 1
    print(f"{len(entries) - count} of {len(entries)} sources compile by themselves")
    return 1 if count > 0 or not entries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
