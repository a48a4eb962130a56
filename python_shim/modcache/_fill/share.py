# SPDX-License-Identifier: Apache-2.0
"""Chooses the batches of a loader for one rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


class Share(NamedTuple):
    """Every ``world_size``-th batch, beginning with number ``rank``."""

    rank: int
    world_size: int


def share_of(rank: int | None, world_size: int | None) -> Share:
    """Returns the given share, or that of torch.distributed, or everything.

    Raises:
        TypeError: a number that is no int.
        ValueError: only one of the two was given, or they do not fit together.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("fill: pass both rank=... and world_size=..., or neither.")
    if rank is None or world_size is None:
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return Share(0, 1)
        return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
    for name, number in (("rank", rank), ("world_size", world_size)):
        if not isinstance(number, int):
            raise TypeError(f"fill: {name} must be an int, but got {type(number).__name__}.")
    if not 0 <= rank < world_size:
        raise ValueError(f"fill: rank={rank} is not one of 0 to world_size - 1 = {world_size - 1}.")
    return Share(rank, world_size)


def batches_of(loader: Iterable[Any], share: Share) -> tuple[Iterable[Any], int | None]:
    """Returns the batches of this rank, and their number, if that is known.

    A DataLoader over a map-style dataset loads no batch of another rank.

    Raises:
        TypeError: the loader cannot be iterated.
        ValueError: each rank would draw an order of its own, so that batches would be left out.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(
            "fill: loader must be a DataLoader or another iterable of batches, but got "
            f"{type(loader).__name__}."
        )
    if share.world_size == 1 or _has_sampler(loader, DistributedSampler):  # it is split already
        return loader, _length_of(loader)
    if _has_sampler(loader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        raise ValueError(
            "fill: ranks cannot share a loader that shuffles, as each has an order of its own; "
            "pass shuffle=False. A fill has no use for another order."
        )
    length = _length_of(loader)
    if length is not None:
        length = len(range(share.rank, length, share.world_size))
    if type(loader) is DataLoader and loader.batch_sampler is not None:
        return _with_batches(loader, _BatchesOfRank(loader.batch_sampler, share)), length
    return itertools.islice(loader, share.rank, None, share.world_size), length


def _has_sampler(loader: Any, *kinds: type) -> bool:
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None))
    return any(isinstance(sampler, kinds) for sampler in samplers)


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


class _BatchesOfRank(Sampler[list[Any]]):
    def __init__(self, whole: Sampler[list[Any]] | Iterable[Any], share: Share) -> None:
        self._whole = whole
        self._share = share

    def __iter__(self) -> Iterator[list[Any]]:
        return itertools.islice(self._whole, self._share.rank, None, self._share.world_size)


def _with_batches(loader: DataLoader[Any], batches: Sampler[list[Any]]) -> DataLoader[Any]:
    """The same loader with other batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
