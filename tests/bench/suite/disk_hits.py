# SPDX-License-Identifier: Apache-2.0
"""Hits that the disk answers, with a warm page cache: each key is asked for, and its value summed."""

from __future__ import annotations

import random

import modcache
from torch import Tensor

from suite import ours, stores, timing
from suite.measurement import Comparison, Figures, Measurement, Place
from suite.values import SIZES, Size, noise

KINDS = (
    stores.Memmap,
    stores.Sequential,
    stores.Lmdb,
    stores.LmdbZeroCopy,
    stores.TorchModuleCache,
    stores.Diskcache,
    stores.Joblib,
    stores.Safetensors,
)
AGAIN = ", again"


def fill(kinds: tuple[type[stores.Store], ...], place: Place, size: Size, count: int) -> None:
    """Puts the values into each store but the zero-copy one, which reads what LMDB has."""
    values = noise(size)
    for kind in stores.there(*kinds):
        store = kind(place.folder, size, count)
        if isinstance(store, stores.LmdbZeroCopy):
            continue
        store.create()
        for number, x in enumerate(ours.inputs_of(count)):
            store.put(number, values(x)[0])
        store.close()


class DiskHit(Measurement):
    def __init__(self, size: Size) -> None:
        self.size = size
        self.name = f"disk hit, {size.name}"
        self.title = f"a hit of {size.name} on disk and a sum over it, from Python, with scope"

    def comparisons(self) -> list[Comparison]:
        one, several, copying, direct = (
            "modcache, one key", "modcache, a list", "LMDB", "LMDB, zero-copy",
        )  # fmt: skip
        name = f"disk hit, {self.size.name}, + sum"
        if self.size.name == "2 KiB":
            return [
                Comparison(f"{name}, one key", one, 1.5, copying),
                Comparison(f"{name}, a list of one key", several, 2.5, copying),
            ]
        if self.size.name == "3 MB":
            return []
        found = [Comparison(f"{name}, beside LMDB zero-copy", one, 1.2, direct)]
        if self.size.name == "12.6 MB":
            again = one + AGAIN
            found.append(
                Comparison(f"{name}, second read, beside memmap", again, 1.1, "memmap" + AGAIN)
            )
        return found

    def prepare(self, place: Place) -> None:
        count = place.of(self.size.count, 4)
        fill(KINDS, place, self.size, count)
        ours.use(place)
        mine = ours.Ours(self.size, count)
        for number in range(count):
            mine.one_key(number)
            mine.list_of_one(number)
            mine.by_operator(number)
        modcache.flush()

    def measure(self, place: Place) -> Figures:
        """First every key for the first time in this process, then every key once more."""
        count = place.of(self.size.count, 4)
        ours.use(place, memory=0)
        mine = ours.Ours(self.size, count)
        readers = {
            "modcache, one key": mine.one_key,
            "modcache, a list": mine.list_of_one,
            "modcache, operator": mine.by_operator,
        }
        for kind in stores.there(*KINDS):
            store = kind(place.folder, self.size, count)
            if isinstance(store, stores.LmdbZeroCopy):
                store.environment = other.environment
                store.transaction = store.environment.begin(buffers=True)
            else:
                store.open()
            other = store
            readers[store.name] = store.get
        order = list(range(count))
        random.Random(place.round).shuffle(order)
        length = 16 if self.size.bytes < 1 << 20 else 2
        warm, rest = order[: length * 2], order[length * 2 :]
        figures: dict[str, float] = {}
        for suffix in ("", AGAIN):
            subjects = {name + suffix: _summed(read) for name, read in readers.items()}
            check = timing.number_in_front
            if suffix == "":
                timing.by_call(subjects, warm, length, _any_or(check), place.round)
            figures |= timing.by_call(subjects, rest, length, _any_or(check), place.round)
        ours.expect_no_misses()
        return figures


def _any_or(check: timing.Check) -> timing.Check:
    """The sequential reader returns None: it has the next value, not the number's."""
    return lambda number, value: value is None or check(number, value)


def _summed(read: timing.Call) -> timing.Call:
    def call(number: int) -> Tensor | None:
        value = read(number)
        value.sum()
        return value

    if isinstance(getattr(read, "__self__", None), stores.Sequential):
        return lambda number: call(number) is None or None
    return call


def measurements() -> list[Measurement]:
    return [DiskHit(size) for size in SIZES.values()]
