# SPDX-License-Identifier: Apache-2.0
"""A stranger who can write in a cache directory: puts something else where a file was."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

THINGS = ["pipe", "directory", "device", "socket", "link", "dangling-link", "hard-link"]
FILES = [
    *["control", "lock", "index.sqlite", "index.sqlite-wal", "index.sqlite-shm"],
    *["index.sqlite-journal", "index.map", "policy.state", "segment", "segments", "notes"],
]


class Stranger:
    """Has a file and a folder outside of the directory, which must stay as they are."""

    def __init__(self, outside: Path) -> None:
        self._outside = outside
        outside.mkdir()
        (outside / "file").write_bytes(b"x" * 100_000)
        self._before = self._facts()

    def _facts(self) -> dict[str, tuple[bytes, int]]:
        return {
            path.name: (path.read_bytes(), path.stat().st_mode) for path in self._outside.iterdir()
        }

    @property
    def is_untouched(self) -> bool:
        return self._facts() == self._before

    def put(self, thing: str, path: Path) -> None:
        """Skips the test where this user cannot make one: a device, without being root."""
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if thing == "pipe":
            os.mkfifo(path)
        elif thing == "directory":
            path.mkdir()
        elif thing == "device":
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("only root makes devices")
        elif thing == "socket":
            here = Path.cwd()
            os.chdir(path.parent)  # its path may be longer than a socket's
            try:
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(path.name)
            finally:
                os.chdir(here)
        elif thing == "hard-link":
            path.hardlink_to(self._outside / "file")
        else:
            path.symlink_to(self._outside / ("file" if thing == "link" else "gone"))


def path_of(directory: Path, file: str) -> Path:
    """`segment` stands for the only one there is."""
    if file == "segment":
        (path,) = (directory / "segments").glob("*.seg")
        return path
    return directory / file


def cases() -> list[tuple[str, str]]:
    folders = ("segments", "notes")
    return [
        (file, thing)
        for file in FILES
        for thing in THINGS
        if file not in folders or thing != "directory"
    ]
