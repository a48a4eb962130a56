# SPDX-License-Identifier: Apache-2.0
"""Hits that the disk answers, with a warm page cache, and a sum over each value."""

from __future__ import annotations

import random
from typing import Any

import modcache

from suite import ours, stores, timing
from suite.measurement import Comparison, Figures, Measurement, Place, beside_limit
from suite.values import SIZES, Size, inputs_of, noise

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
NEXT_VALUE = object()


def fill(kinds: tuple[type[stores.Store], ...], place: Place, size: Size, count: int) -> None:
    """Puts the values into each store but the zero-copy one, which reads what LMDB has."""
    mark = place.shared / "filled"
    if mark.exists():
        return
    values = noise(size)
    for kind in stores.there(*kinds):
        store = kind(place.shared, size, count)
        if isinstance(store, stores.LmdbZeroCopy):
            continue
        store.create()
        for number, x in enumerate(inputs_of(count)):
            store.put(number, values(x)[0])
        store.close()
    mark.touch()


def opened(
    kinds: tuple[type[stores.Store], ...], place: Place, size: Size, count: int
) -> list[stores.Store]:
    """A process may open an environment of LMDB once, so the zero-copy one takes the other's."""
    found: list[stores.Store] = []
    for kind in stores.there(*kinds):
        store = kind(place.shared, size, count)
        if isinstance(store, stores.LmdbZeroCopy):
            first = next(other for other in found if type(other) is stores.Lmdb)
            store.begin_in(first)
        else:
            store.open()
        found.append(store)
    return found


class DiskHit(Measurement):
    in_both_columns = ("2 KiB", "151 KB", "12.6 MB")

    def __init__(self, size: Size) -> None:
        self.size = size
        if size.name not in self.in_both_columns:
            self.matches = ("none",)
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
            path, again = f"{name}, second read, beside memmap", one + AGAIN
            found.append(Comparison(path, again, 1.1, "memmap" + AGAIN, ceiling=5))
        return found

    def limits(self) -> list[Comparison]:
        if self.size.name not in ("2 KiB", "151 KB"):
            return []
        path = f"disk hit, {self.size.name}, + sum, beside memmap"
        return [beside_limit(path, "modcache, one key", 7, "memmap")]

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
        for store in opened(KINDS, place, self.size, count):
            readers[store.name] = store.get
        order = list(range(count))
        random.Random(place.round).shuffle(order)
        length = 16 if self.size.bytes < 1 << 20 else 1
        first = min(length * 2, count // 4 // length * length)
        warm, rest = order[:first], order[first:]
        figures: dict[str, float] = {}
        for suffix in ("", AGAIN):
            subjects = {name + suffix: _summed(read) for name, read in readers.items()}
            if suffix == "":
                timing.by_call(subjects, warm, length, _is_right, place.round)
            figures |= timing.by_call(subjects, rest, length, _is_right, place.round)
        ours.expect_no_misses()
        return figures


def _is_right(number: int, value: Any) -> bool:
    """The sequential reader has the next value, whatever its number."""
    return value is NEXT_VALUE or timing.number_in_front(number, value)


def _summed(read: timing.Call) -> timing.Call:
    in_sequence = isinstance(getattr(read, "__self__", None), stores.Sequential)

    def call(number: int) -> Any:
        value = read(number)
        value.sum()
        return NEXT_VALUE if in_sequence else value

    return call


def measurements() -> list[Measurement]:
    return [DiskHit(size) for size in SIZES.values()]
