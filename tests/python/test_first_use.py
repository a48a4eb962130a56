# SPDX-License-Identifier: Apache-2.0
"""A package that loads parts of itself at its first use is the same before and after."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from PIL import Image
from processes import ProcessRunner
from torch import nn
from torch.utils.data import Dataset


class Photos(Dataset[Any]):
    """Files are given by their bytes; what matters is that the code opens images."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Image.Image:
        return Image.open(io.BytesIO(self.files[index])).convert("RGB")


class Reader(nn.Module):
    def forward(self, file: bytes) -> torch.Tensor:
        image = Image.open(io.BytesIO(file))
        return torch.tensor(image.getpixel((0, 0)))


def file(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(stream, kind)
    return stream.getvalue()


def open_first(files: list[bytes]) -> None:
    for each in files:
        Image.open(io.BytesIO(each)).load()


def read_truncated(_: list[bytes]) -> None:
    from PIL import ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES = True


def register_another(_: list[bytes]) -> None:
    Image.register_open("ANOTHER", lambda stream, name: Image.new("RGB", (1, 1)))  # type: ignore[arg-type, return-value]


def identities(before: Callable[[list[bytes]], None] | None, files: list[bytes]) -> Any:
    """In a child: the scopes of a dataset and a module, before and after they read images."""
    if before is not None:
        before(files)
    found = []
    for _ in range(2):
        dataset = modcache.CachedDataset(Photos(files))
        found.append((dataset.scope, modcache.fingerprint(Reader())))
        assert len(list(dataset)) == len(files)
    return found


KINDS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [file(kind) for kind in KINDS]


def test_opening_files_of_any_format_changes_no_scope(
    processes: ProcessRunner, files: list[bytes]
) -> None:
    first, again = processes.run(identities, None, files).value
    assert again == first


def test_formats_that_were_opened_earlier_change_no_scope(
    processes: ProcessRunner, files: list[bytes]
) -> None:
    opened = [processes.start(identities, before, files) for before in (None, open_first)]
    results = [each.wait().value for each in opened]
    assert results[0] == results[1]


@pytest.mark.parametrize("change", [read_truncated, register_another])
def test_what_the_program_changes_in_the_package_counts(
    processes: ProcessRunner, files: list[bytes], change: Any
) -> None:
    changed = [processes.start(identities, before, files) for before in (None, change)]
    plain, other = (each.wait().value[0] for each in changed)
    assert plain[0] != other[0]
    assert plain[1] != other[1]
