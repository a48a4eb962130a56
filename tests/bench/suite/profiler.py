# SPDX-License-Identifier: Apache-2.0
"""Profiles one measurement, in a process that is started under perf or callgrind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from suite import worker
from suite.measurement import Measurement, Place

_FOLDER = Path(__file__).resolve().parents[3] / "build" / "profiles"
TOOLS = ("perf", "callgrind")
_PACKAGES = {"perf": "linux-perf", "callgrind": "valgrind"}


class ProfileError(Exception):
    """A tool that is not here, or that failed."""


def profile(one: Measurement, tool: str, match: str, work: Path | None) -> Path:
    """Runs a round with few calls under a tool; returns the file with what it saw."""
    program = shutil.which("valgrind" if tool == "callgrind" else tool)
    if program is None:
        raise ProfileError(f"{tool} is not installed (Debian has it in {_PACKAGES[tool]})")
    words = "".join(letter if letter.isalnum() else "-" for letter in one.name)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    file = _FOLDER / f"{words}.{tool}.out"
    with tempfile.TemporaryDirectory(prefix="modcache-profile-", dir=work) as folder:
        place = Place(Path(folder), match, Path(folder), quick=True)
        worker.run(worker.prepare, one.name, place)
        command = [program, *_options(tool, file), sys.executable]
        command += ["-m", "suite.worker", one.name, folder, match]
        # perf sees the names of Python's functions where Python writes them down (3.12 and newer).
        done = subprocess.run(command, env=os.environ | {"PYTHONPERFSUPPORT": "1"}, check=False)
    if done.returncode != 0:
        raise ProfileError(f"{tool} ended with {done.returncode}")
    print(f"read it with: {_reader(tool, file)}", file=sys.stderr)
    return file


def _options(tool: str, file: Path) -> list[str]:
    if tool == "perf":
        return ["record", "--call-graph", "dwarf,16384", "-F", "997", "-o", str(file)]
    return ["--tool=callgrind", f"--callgrind-out-file={file}", "--trace-children=no"]


def _reader(tool: str, file: Path) -> str:
    if tool == "perf":
        return f"perf report --no-children -i '{file}'"
    return f"callgrind_annotate --inclusive=yes '{file}'"
