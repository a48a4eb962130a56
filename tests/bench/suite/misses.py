# SPDX-License-Identifier: Apache-2.0
"""What a miss costs beside the module's run; and fills, beside writing the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import modcache

from suite import ours, stores, timing
from suite.measurement import Comparison, Figures, Measurement, Place, beside_limit
from suite.values import SIZES, Size, noise

RIVALS = (
    stores.Lmdb,
    stores.TorchModuleCache,
    stores.Diskcache,
    stores.Safetensors,
    stores.Joblib,
)


class Miss(Measurement):
    """2 KiB: the run is short, so all else shows."""

    name = "miss, 2 KiB"
    title = "a miss of 2 KiB"
    size = SIZES["2 KiB"]

    def comparisons(self) -> list[Comparison]:
        return [
            Comparison(
                "miss, 2 KiB, less the module, scripted, beside LMDB's put",
                "modcache, scripted", 1.2, "LMDB, put", less="the module, scripted",
            ),
            Comparison(
                "miss, 2 KiB, less the module, eager, beside torch-module-cache",
                "modcache, eager, scope", 0.4, "torch-module-cache",
                less="the module", over_less="the module",
            ),
        ]  # fmt: skip

    def limits(self) -> list[Comparison]:
        path = "miss, 2 KiB, less the module, beside the module"
        alone, scripted = "the module", "the module, scripted"
        return [
            beside_limit(f"{path}, scripted", "modcache, scripted", 8, scripted, less=scripted),
            beside_limit(f"{path}, eager", "modcache, eager, scope", 30, alone, less=alone),
        ]

    def measure(self, place: Place) -> Figures:
        length, spans = 32, place.of(64)
        count = length * (spans + 2)
        ours.use(place, f"modcache-{place.round}")
        mine = ours.Ours(self.size, count)
        subjects: dict[str, timing.Call] = {
            "modcache, scripted": mine.scripted_key,
            "modcache, eager, scope": mine.one_key,
            "modcache, eager, no scope": mine.no_scope,
            "modcache, eager, a list": mine.list_of_one,
            "the module": mine.module_alone,
            "the module, scripted": mine.scripted_alone,
        }
        value = mine.module_alone(0)[0]
        rounds_folder = place.folder / str(place.round)
        for kind in stores.there(
            stores.Lmdb,
            stores.TorchModuleCache,
            stores.Diskcache,
            stores.Safetensors,
            stores.Joblib,
        ):
            store = kind(rounds_folder, self.size, count)
            store.create()
            runs = isinstance(store, (stores.TorchModuleCache, stores.Joblib))
            subjects[store.name if runs else f"{store.name}, put"] = _put(store, value)
        check = timing.anything
        timing.by_call(subjects, range(2 * length), length, check, place.round)
        return timing.by_call(subjects, range(2 * length, count), length, check, place.round)


def _put(store: stores.Store, value: Any) -> timing.Call:
    if isinstance(store, (stores.TorchModuleCache, stores.Joblib)):
        return store.get

    def call(number: int) -> Any:
        store.put(number, value)
        return value

    return call


class Fill(Measurement):
    """Values one after the other, until the last call has returned, and until all is on disk."""

    in_both_columns = ("151 KB", "12.6 MB")

    def __init__(self, size: Size) -> None:
        self.size = size
        if size.name not in self.in_both_columns:
            self.matches = ("none",)
        self.name = f"fill, {size.name}"
        self.title = f"{size.name} a miss, one after the other; per value"

    def comparisons(self) -> list[Comparison]:
        if self.size.name == "3 MB":
            return []
        path = f"fill, {self.size.name}, less the module"
        # Writes of 12.6 MB differ fivefold from one round to the next.
        ceiling = 50 if self.size.name == "151 KB" else None
        return [
            Comparison(
                f"{path}, beside a sequential write",
                "modcache", 1.2, "sequential write", less="the module", ceiling=ceiling,
            ),
            Comparison(
                f"{path}, both forced to disk",
                "modcache, flush", 1.2, "sequential write, fsync", less="the module",
            ),
        ]  # fmt: skip

    def measure(self, place: Place) -> Figures:
        """Parts of the fill in turn: each subject makes some values, then the next one does."""
        parts = 4
        # More of each would only fill the disk.
        part = place.of(min(1024, (256 << 20) // self.size.bytes), 16) // parts
        count = parts * part
        ours.use(place, f"modcache-{place.round}")
        mine = ours.Ours(self.size, count + 1)
        mine.one_key(count)
        modcache.flush()
        value = noise(self.size)(mine.inputs[0])[0]
        spent: dict[str, list[float]] = {}
        workers: dict[str, tuple[Callable[[int], Any], Callable[[], Any]]] = {
            "the module": (mine.module_alone, lambda: None),
            "modcache": (mine.one_key, modcache.flush),
        }
        for kind in stores.there(stores.Sequential, stores.Lmdb, stores.TorchModuleCache):
            store = kind(place.folder / str(place.round), self.size, count)
            store.create()
            workers[store.name] = (_put(store, value), _forced(store))
        for index in range(parts):
            numbers = range(index * part, (index + 1) * part)
            for name in next(iter(timing.turns(workers, 1, index + place.round))):
                call, force = workers[name]
                os.sync()
                took = timing.seconds_of(partial(_all, call, numbers))
                forced = timing.seconds_of(force)
                spent.setdefault(name, []).append(took / part * 1e6)
                spent.setdefault(f"{name}, forced", []).append((took + forced) / part * 1e6)
        middle = {name: sorted(times)[len(times) // 2] for name, times in spent.items()}
        renamed = {
            "sequential": "sequential write",
            "sequential, forced": "sequential write, fsync",
            "modcache, forced": "modcache, flush",
        }
        middle.pop("the module, forced")
        middle.pop("torch-module-cache, forced", None)
        return {renamed.get(name, name): figure for name, figure in middle.items()}


def _all(call: timing.Call, numbers: range) -> None:
    for number in numbers:
        call(number)


def _forced(store: stores.Store) -> Callable[[], Any]:
    if isinstance(store, stores.Sequential):
        return lambda: os.fsync(store.file.fileno())
    if isinstance(store, stores.Lmdb):
        return lambda: store.environment.sync(True)
    return lambda: None


def measurements() -> list[Measurement]:
    return [Miss(), *(Fill(size) for name, size in SIZES.items() if name != "2 KiB")]
