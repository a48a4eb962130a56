# SPDX-License-Identifier: Apache-2.0
"""Each recipe has a cache directory, counters and random state of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import modcache
import pytest
import torch
import torchvision_operators

torchvision_operators.declare_missing()


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)  # what a library writes is not left in the tree
    before = {name: value for name, value in modcache.settings().items() if name != "dir"}
    modcache.configure(dir=tmp_path / "cache")
    modcache.reset_stats()
    yield
    modcache.configure(dir=tmp_path / "left", **before)
    modcache.set_mode("on")
