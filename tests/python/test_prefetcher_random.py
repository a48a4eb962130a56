# SPDX-License-Identifier: Apache-2.0
"""modcache.Prefetcher over a CachedDataset: random numbers are those of a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import modcache
import torch
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset[torch.Tensor]):
    """Samples that take a while to draw; meanwhile the generators are in a state of their own."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.stack([torch.rand(()) for _ in range(300)])


def drawn_beside(wrapped: Callable[[Any], Any]) -> list[float]:
    """What a training loop draws while batches are made ahead, from samples cached or not."""
    loader = DataLoader(modcache.CachedDataset(Drawn()), batch_size=4)
    torch.manual_seed(3)
    drawn = []
    for _ in wrapped(loader):
        drawn += [torch.rand(()).item() for _ in range(300)]
    return drawn


def test_samples_made_ahead_leave_the_callers_random_numbers_alone() -> None:
    def twice(loader: Any) -> Any:
        return modcache.Prefetcher(modcache.Prefetcher(loader, device="cpu"), device="cpu")

    modcache.set_mode("refresh")
    try:
        plain = drawn_beside(list)
        assert drawn_beside(lambda loader: modcache.Prefetcher(loader, device="cpu")) == plain
        assert drawn_beside(twice) == plain
    finally:
        modcache.set_mode("on")
    assert drawn_beside(lambda loader: modcache.Prefetcher(loader, device="cpu")) == plain


def test_a_worker_forked_by_the_thread_waits_for_no_caller() -> None:
    def batches() -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        yield torch.zeros(1)
        yield from DataLoader(modcache.CachedDataset(Drawn()), batch_size=16, num_workers=1)

    assert len(list(modcache.Prefetcher(batches(), device="cpu"))) == 5
