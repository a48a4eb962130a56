# SPDX-License-Identifier: Apache-2.0
"""The mode of a directory, set as ``modcache mode`` does: by the bytes of FORMAT.md."""

from __future__ import annotations

import struct
from pathlib import Path

_NUMBERS = {"off": 0, "read": 1, "on": 3}
_PAGE_BYTES, _MODE_AT = 4096, 320
_VERSION = 2  # of the format


def set_directory_mode(directory: Path, mode: str) -> None:
    """Makes directory and page where there are none."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "control"
    if not path.exists():
        _make_page(path)
    number = _NUMBERS[mode]
    with path.open("r+b", buffering=0) as page:
        page.seek(_MODE_AT)
        page.write(struct.pack("<II", number, ~number & 0xFFFFFFFF))


def _make_page(path: Path) -> None:
    page = bytearray(_PAGE_BYTES)
    struct.pack_into("<8sII", page, 0, b"modcctrl", _VERSION, ~_VERSION & 0xFFFFFFFF)
    for offset in (64, 128, 256):  # sequence, removals, epoch
        struct.pack_into("<Q", page, offset, 1)
    new = path.with_suffix(".new")
    new.write_bytes(page)
    new.rename(path)
