# SPDX-License-Identifier: Apache-2.0
"""Writes into tensors that a dataset holds: its samples are made anew."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from torch.utils.data import Dataset


class Held(Dataset[float]):
    def __init__(self, mean: torch.Tensor) -> None:
        self.mean = mean

    def __getitem__(self, index: int) -> float:
        return float(index)


@pytest.mark.parametrize("write", [lambda t: t.data.fill_(5), lambda t: t.numpy().fill(5)])
@pytest.mark.parametrize(
    "mean",
    [
        torch.zeros(2),
        torch.zeros(4, 3).t(),
        torch.tensor(0.0),
        torch.zeros(2, dtype=torch.cfloat).conj(),
    ],
)
def test_a_write_into_a_tensor_that_counts_no_version_is_seen(write: Any, mean: Any) -> None:
    mean = mean.clone(memory_format=torch.preserve_format)
    cached = modcache.CachedDataset(Held(mean))
    before = cached.scope
    write(mean.conj() if mean.is_conj() else mean)
    assert cached.scope != before


class Encoded(Dataset[torch.Tensor]):
    """Samples made by a module of many layers, with gradients unless they are frozen."""

    def __init__(self, layers: int = 100) -> None:
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)])

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.layers(torch.full((4,), float(index))).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize("layer", [0, 1, 57, 99])
def test_a_write_into_one_of_many_parameters_is_seen(layer: int) -> None:
    encoded = Encoded()
    cached = modcache.CachedDataset(encoded)
    cached[0]
    before = cached.scope
    encoded.layers[layer].weight.data.mul_(3)
    assert cached.scope != before


class Row(Dataset[torch.Tensor]):
    def __init__(self, table: torch.nn.Embedding) -> None:
        self.table = table

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.table(torch.tensor(index)).detach()  # type: ignore[no-any-return]


def test_a_step_of_a_fused_optimizer_is_seen() -> None:
    encoded = Encoded(layers=1)
    cached = modcache.CachedDataset(encoded)
    stale = cached[1]
    optimizer = torch.optim.Adam(encoded.layers.parameters(), lr=0.5, fused=True)
    encoded.layers(torch.ones(4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(cached[1], encoded[1])
    assert not torch.equal(cached[1], stale)


def test_a_step_of_which_nobody_is_told_is_seen_after_a_run_with_gradients() -> None:
    table = torch.nn.Embedding(5000, 16)
    cached = modcache.CachedDataset(Row(table))
    stale = cached[4321]
    table.weight.data[4321] -= 0.5
    assert torch.equal(cached[4321], stale - 0.5)
