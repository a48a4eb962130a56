# SPDX-License-Identifier: Apache-2.0
"""The built program, and directories that it looks at. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from program import FillDirectory, Outcome, filling, run_program


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MODCACHE_")]:
        if name != "MODCACHE_PROGRAM":
            monkeypatch.delenv(name)


@pytest.fixture
def modcache() -> Callable[..., Outcome]:
    return run_program


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a cache will be; nothing is there yet."""
    return tmp_path / "cache"


@pytest.fixture
def writer(directory: Path) -> Iterator[FillDirectory]:
    with filling(directory) as process:
        yield process


@pytest.fixture
def filled(directory: Path, writer: FillDirectory) -> Path:
    """Three scopes: 5 entries of `encoder@1`, 1 row of `encoder@2`, 1 of `other` with odd keys."""
    writer.put(scope="encoder@1", key="key-", count=5, shape=[3, 256])
    writer.put(scope="encoder@2", key="key-0", form="row", method="encode", arguments="2:ab,")
    writer.put(scope="other", key="line\n\x1b[31mé", namespace="mine", run_us=90_000_000)
    writer.flush()
    writer.leave()
    return directory
