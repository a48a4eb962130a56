# SPDX-License-Identifier: Apache-2.0
"""The commands of a build: each compiles one source, or several that a unity source includes."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

_INCLUDED = re.compile(r'^#include "(/.*\.cpp)"$', re.MULTILINE)


class Unit(NamedTuple):
    sources: tuple[Path, ...]
    folder: str  # in which the compiler runs
    command: tuple[str, ...]  # without the source and the output


def units_of(build: Path, folders: list[Path]) -> list[Unit]:
    """The units of a build's compile_commands.json whose sources lie in ``folders``."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    units = [_unit_of(entry) for entry in entries]
    return [
        unit
        for unit in units
        if any(unit.sources[0].resolve().is_relative_to(folder) for folder in folders)
    ]


def threads() -> int:
    """How many commands run at a time."""
    return int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"))


def _unit_of(entry: dict[str, str]) -> Unit:
    command = shlex.split(entry["command"])
    for option in ("-o", "-c"):  # the output, and the source
        place = command.index(option)
        del command[place : place + 2]
    return Unit(_sources_of(Path(entry["file"])), entry["directory"], tuple(command))


def _sources_of(compiled: Path) -> tuple[Path, ...]:
    if compiled.suffix != ".cxx":  # CMake names its unity sources so, and none of ours
        return (compiled,)
    included = _INCLUDED.findall(compiled.read_text(encoding="utf-8"))
    return tuple(Path(path) for path in included)
