# SPDX-License-Identifier: Apache-2.0
"""Rows of different shapes from what ``cached`` made."""

from __future__ import annotations

import modcache
import pytest
import torch
from torch import nn


class UpTo(nn.Module):
    """As many numbers as the first element says, for the one row that it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(int(x[0, 0])).repeat(len(x), 1)


def filled(module: nn.Module) -> torch.Tensor:
    x = torch.tensor([[2.0, 0.0], [4.0, 1.0]])
    for row in range(2):
        module(x[row : row + 1], ids=[row])
    return x


def test_as_a_list() -> None:
    module = modcache.cached(UpTo(), key="ids", ragged="list")
    x = filled(module)
    assert [row.tolist() for row in module(x, ids=[0, 1])] == [[0, 1], [0, 1, 2, 3]]
    assert [row.tolist() for row in module(x[:1], ids=[0])] == [[0, 1]], "a list always"


def test_padded() -> None:
    module = modcache.cached(UpTo(), key="ids", ragged="pad")
    padded, lengths = module(filled(module), ids=[0, 1])
    assert padded.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert lengths.tolist() == [2, 4]


def test_a_batch_runs_whole_by_default() -> None:
    module = modcache.cached(UpTo(), key="ids")
    x = filled(module)
    assert torch.equal(module(x, ids=[0, 1]), UpTo()(x))
    with pytest.raises(ValueError, match=r"must be one of: error, list, pad"):
        modcache.cached(UpTo(), key="ids", ragged="lists")


def test_a_class_a_function_and_a_copy_keep_it() -> None:
    @modcache.cached(key="ids", ragged="list")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert len(doubled(torch.ones(3, 1), ids=[0, 1, 2])) == 3

    kind = modcache.cached(type("Kind", (UpTo,), {}), key="ids", ragged="list")
    assert isinstance(kind()(torch.ones(2, 1), ids=[3, 4]), list)
