# SPDX-License-Identifier: Apache-2.0
"""modcache.fill over a loader that uses the cache itself: whose lookups are counted."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS = torch.arange(20.0).reshape(10, 2)
IDS = torch.arange(10)


def test_what_the_loader_looks_up_is_not_counted() -> None:
    samples: Any = modcache.CachedDataset(TensorDataset(ROWS, IDS), scope="loader-hits")
    loader = DataLoader(samples, batch_size=4)
    list(loader)
    done = modcache.fill(nn.Linear(2, 3).eval(), loader, key=1)
    assert (done.hits, done.runs, done.stored, done.saved_seconds) == (0, 10, 10, 0.0)


def test_what_the_loader_stores_hides_no_rows_that_are_not_cached() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(2)

    samples: Any = modcache.CachedDataset(TensorDataset(ROWS, IDS), scope="loader-stores")
    with pytest.warns(UserWarning, match="10 of 10 rows that were run are not cached"):
        done = modcache.fill(Noisy(), DataLoader(samples, batch_size=10), key=1)
    assert (done.runs, done.stored) == (10, 0)
