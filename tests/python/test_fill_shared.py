# SPDX-License-Identifier: Apache-2.0
"""modcache.fill(share=True): loaders that it takes, without a server."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from modcache._fill.shared_batches import BatchList
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

DATASET = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(DATASET),
        SubsetRandomSampler(range(10)),
        WeightedRandomSampler([1.0] * 10, 10),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_loader_that_shuffles_cannot_be_shared(sampler: Sampler[int]) -> None:
    loader: Any = DataLoader(DATASET, batch_size=2, sampler=sampler)
    with pytest.raises(ValueError, match=r"processes cannot share a loader that shuffles"):
        modcache.fill(nn.Linear(2, 2), loader, key=1, share=True)


def test_a_loader_that_is_split_already_cannot_be_shared() -> None:
    sampler: Any = DistributedSampler(DATASET, num_replicas=2, rank=0)
    loader: Any = DataLoader(DATASET, batch_size=2, sampler=sampler)
    with pytest.raises(ValueError, match=r"processes share the work themselves.*plain DataLoader"):
        modcache.fill(nn.Linear(2, 2), loader, key=1, share=True)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9, 10])
def test_batches_of_the_default_samplers_are_those_of_the_loader(
    rows: int, drop_last: bool
) -> None:
    sampler = BatchSampler(SequentialSampler(range(rows)), 3, drop_last)
    batches = BatchList(sampler)
    assert [batches[i] for i in range(len(batches))] == list(sampler)
    assert len({batches.part(i) for i in range(len(batches))}) == len(batches)


def test_a_thousand_million_rows_are_not_listed() -> None:
    batches = BatchList(BatchSampler(SequentialSampler(range(10**9)), 100, drop_last=False))
    assert len(batches) == 10**7
    assert batches[10**7 - 1] == list(range(10**9 - 100, 10**9))


def test_other_samplers_are_listed() -> None:
    batches = BatchList(iter([[3, 1], [2]]))
    assert [batches[0], batches[1]] == [[3, 1], [2]]
    assert batches.part(0) != batches.part(1)
