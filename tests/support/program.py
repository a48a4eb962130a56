# SPDX-License-Identifier: Apache-2.0
"""Running the program, and the one that fills directories."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUCCESS, FINDINGS, MISUSE = 0, 1, 2


def binary(name: str) -> Path:
    """Of the build that MODCACHE_PROGRAM lies in, else of build/release."""
    program = Path(os.environ.get("MODCACHE_PROGRAM", ROOT / "build/release/bin/modcache"))
    path = program.parent / name
    assert path.exists(), "first: ./tests/run --only build"
    return path


@dataclass(frozen=True)
class Outcome:
    status: int
    data: str
    messages: str

    def json(self) -> Any:
        """What was written with --json: one object, and no message."""
        assert self.messages == ""
        return json.loads(self.data)

    @property
    def lines(self) -> list[str]:
        return self.data.splitlines()


def run_program(*arguments: str | Path, **options: Any) -> Outcome:
    command = [os.fspath(word) for word in (binary("modcache"), *arguments)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120, **options)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


class FillDirectory:
    """The process of fill_directory.cpp."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, what: str, **members: Any) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **members}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ok\n"

    def put(self, **members: Any) -> None:
        self.do("put", **members)

    def find(self, **members: Any) -> None:
        self.do("find", **members)

    def flush(self) -> None:
        self.do("flush")

    def keep_manifest(self, scope: str, namespace: str = "", **members: Any) -> None:
        text = json.dumps({"format": 1, "scope": scope, **members})
        self.do("note", about=f"manifest {namespace}\n{scope}", text=text)

    def leave(self) -> None:
        """Closes the directory, as a program does that ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def filling(directory: Path) -> Iterator[FillDirectory]:
    """A process that has the directory open, and stores what it is told."""
    with subprocess.Popen(
        [binary("fill_directory"), directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield FillDirectory(process)


def bytes_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
