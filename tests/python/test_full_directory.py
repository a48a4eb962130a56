# SPDX-License-Identifier: Apache-2.0
"""What a new result replaces goes also where the directory is full and takes no new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from torch.utils.data import Dataset

Growth = Callable[[], dict[str, int]]
KEYS = [f"k{i}" for i in range(60)]
SIZE = 10_000


@pytest.fixture(autouse=True)
def small_directory() -> None:
    modcache.configure(disk="1MB", policy="keep", memory=0)


def assert_is_full() -> None:
    modcache.flush()
    assert modcache.stats()["not_kept"] > 0


class Constant(Dataset[torch.Tensor]):
    number = 1.0

    def __len__(self) -> int:
        return len(KEYS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIZE,), self.number)


def test_a_refreshed_sample_is_not_found_as_it_was() -> None:
    dataset = Constant()
    cached = modcache.CachedDataset(dataset, scope="constant@1")
    for index in range(len(dataset)):
        cached[index]
    assert_is_full()
    dataset.number = 2.0
    assert cached[0][0] == 1, "the first came while there was room"
    with modcache.mode("refresh"):
        assert cached[0][0] == 2
    modcache.flush()
    assert cached[0][0] == 2


@pytest.mark.parametrize("keys", ["k0", KEYS[:2]], ids=["one key", "per row"])
def test_an_entry_of_another_shape_conflicts_once(keys: Any, counted: Growth) -> None:
    relu = torch.nn.ReLU()

    def call(x: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(relu, x, keys, scope="relu@1")  # type: ignore[no-any-return]

    call(torch.zeros(2, SIZE))
    modcache.lookup_or_run(relu, torch.zeros(len(KEYS), SIZE), KEYS, scope="more@1")
    assert_is_full()
    counted()
    other = torch.ones(2, SIZE - 1)
    assert torch.equal(call(other), other)
    conflicts = counted()["key_conflicts"]
    assert conflicts == (1 if isinstance(keys, str) else 2)
    modcache.flush()
    assert torch.equal(call(other), other)
    assert "key_conflicts" not in counted()
