# SPDX-License-Identifier: Apache-2.0
"""Batches of 256 keys on disk, and a sum over each, beside gathers from a mapped file; per key."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import modcache
import torch
from torch import Tensor

from suite import ours, stores, timing
from suite.disk_hits import AGAIN, fill
from suite.measurement import Comparison, Figures, Measurement, Place
from suite.values import BATCH, SIZES, Size, key_of, noise

KINDS = (stores.Memmap, stores.Lmdb)
# Others take a batch as a loop; one is enough to show what that costs.
LOOPS = (stores.TorchModuleCache,)


@dataclass
class Batch:
    numbers: list[int]
    inputs: Tensor
    keys: list[str]
    ids: Tensor


def batch_of(numbers: list[int]) -> Batch:
    ids = torch.tensor(numbers)
    return Batch(numbers, ids.view(-1, 1).float(), [key_of(number) for number in numbers], ids)


class BatchHit(Measurement):
    def __init__(self, size: Size) -> None:
        self.size = size
        self.name = f"batch, {size.name}"
        self.title = f"a batch of {BATCH} x {size.name} on disk and a sum over it, per key"
        self.factor = (1.0, 2.0) if size.name == "2 KiB" else (0.7, 1.0)

    def comparisons(self) -> list[Comparison]:
        path = f"batch of {BATCH} x {self.size.name}, + sum, per key"
        again, first = self.factor
        mine, rival = "modcache, keys", "memmap"
        # Rows of 151 KB take what copying them takes, whatever else a batch does.
        ceiling = 6 if self.size.name == "2 KiB" else None
        return [
            Comparison(f"{path}, read before", mine + AGAIN, again, rival + AGAIN, ceiling=ceiling),
            Comparison(f"{path}, first read", mine, first, rival),
        ]

    def count(self, place: Place) -> int:
        return place.of(self.size.batches, 2) * BATCH

    def prepare(self, place: Place) -> None:
        count = self.count(place)
        fill((*KINDS, *LOOPS), place, self.size, count)
        ours.use(place)
        module: Any = torch.jit.script(noise(self.size))
        for start in range(0, count, BATCH):
            batch = batch_of(list(range(start, start + BATCH)))
            modcache.lookup_or_run(module, batch.inputs, batch.keys)
            modcache.lookup_or_run(module, batch.inputs, batch.ids)
        modcache.flush()

    def measure(self, place: Place) -> Figures:
        count = self.count(place)
        ours.use(place, memory=0)
        gathers = _gathers(place, self.size, count)
        figures: dict[str, float] = {}
        for suffix, seed in (("", place.round), (AGAIN, place.round + 1000)):
            order = list(range(count))
            random.Random(seed).shuffle(order)
            batches = [batch_of(order[i : i + BATCH]) for i in range(0, count, BATCH)]

            def check(number: int, value: Tensor, batches: list[Batch] = batches) -> bool:
                return torch.equal(value.flatten(1)[:, 0], batches[number].inputs[:, 0])

            subjects: dict[str, timing.Call] = {
                name + suffix: partial(_summed, gather, batches) for name, gather in gathers.items()
            }
            times = timing.by_call(subjects, range(len(batches)), 1, check, seed)
            figures |= {name: us / BATCH for name, us in times.items()}
        ours.expect_no_misses()
        return figures


def _summed(gather: Callable[[Batch], Tensor], batches: list[Batch], number: int) -> Tensor:
    value = gather(batches[number])
    value.sum()
    return value


def _gathers(place: Place, size: Size, count: int) -> dict[str, Any]:
    module: Any = torch.jit.script(noise(size))
    # No two of them share entries, or the second would find read what the first has read.
    gathers: dict[str, Any] = {
        "modcache, keys": lambda batch: modcache.lookup_or_run(module, batch.inputs, batch.keys),
        "modcache, ids": lambda batch: modcache.lookup_or_run(module, batch.inputs, batch.ids),
    }
    for kind in stores.there(*KINDS, *LOOPS):
        store = kind(place.shared, size, count)
        store.open()
        gathers[store.name] = lambda batch, store=store: store.gather(batch.numbers)
    flat = torch.from_file(
        str(place.shared / "Memmap" / "rows"), size=count * size.bytes // 4, dtype=torch.float32
    )
    rows = flat.view(count, *size.shape)
    gathers["from_file, index_select"] = lambda batch: rows.index_select(0, batch.ids)
    return gathers


def measurements() -> list[Measurement]:
    return [BatchHit(SIZES["2 KiB"]), BatchHit(SIZES["151 KB"])]
