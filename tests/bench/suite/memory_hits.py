# SPDX-License-Identifier: Apache-2.0
"""Hits that memory answers, called from Python."""

from __future__ import annotations

from typing import Any

import modcache
import torch
from torch import Tensor

from suite import ours, stores, timing
from suite.measurement import Comparison, Figures, Measurement, Place, beside_limit
from suite.values import PARAMETERS, SIZES, Size, deep, inputs_of, keys_of, noise

KEYS = 256
RIVAL = stores.TorchModuleCacheMemory


class MemoryHit(Measurement):
    """One key at a time, all of them in memory."""

    in_both_columns = ("2 KiB",)

    def __init__(self, size: Size) -> None:
        self.size = size
        if size.name not in self.in_both_columns:
            self.matches = ("none",)
        self.name = f"memory hit, {size.name}"
        self.title = f"a hit of {size.name} in memory, from Python, with scope"
        # Values of one key and of a list of one are kept twice.
        self.count = min(KEYS, max(8, (200 << 20) // size.bytes))

    def comparisons(self) -> list[Comparison]:
        if self.size.name != "2 KiB":
            return []
        rival = RIVAL.name
        return [
            Comparison("memory hit, one str key, scope", "modcache, one key", 0.4, rival),
            Comparison("memory hit, a list of one key, scope", "modcache, a list", 0.8, rival),
        ]

    def limits(self) -> list[Comparison]:
        if self.size.name != "2 KiB":
            return []
        path, rival = "beside copying the value", "memcpy"
        return [
            beside_limit(f"memory hit, one key, {path}", "modcache, one key", 8, rival),
            beside_limit(f"memory hit, a list of one key, {path}", "modcache, a list", 12, rival),
        ]

    def measure(self, place: Place) -> Figures:
        ours.use(place, memory="8GB")
        modcache.clear()  # the rows of an earlier round would be read from disk
        mine = ours.Ours(self.size, self.count)
        subjects: dict[str, timing.Call] = {
            "modcache, one key": mine.one_key,
            "modcache, a list": mine.list_of_one,
            "the module": mine.module_alone,
        }
        for kind in stores.there(stores.Dict, RIVAL):
            store = kind(place.folder, self.size, self.count)
            store.create()
            for number in range(self.count):
                store.put(number, mine.module_alone(number))
            subjects[store.name] = store.get
        values = [noise(self.size)(x) for x in inputs_of(self.count)]
        subjects["memcpy"] = lambda number: values[number].clone()
        for number in range(self.count):
            mine.one_key(number)
            mine.list_of_one(number)
        modcache.reset_stats()
        small = self.size.bytes < 1 << 20
        spans = place.of(480 if small else 60)
        length = min(8 if small else 2, self.count)
        numbers = [i % self.count for i in range(length * spans)]
        figures = timing.by_span(subjects, numbers, length, seed=place.round)
        ours.expect_memory_hits_alone()
        return figures


class EagerHit(Measurement):
    """A module of 300 parameters that is told by what it is, with gradients on."""

    name = "memory hit, 300 parameters"
    title = "a hit in memory of an eager module of 300 parameters, gradients on, no scope"

    def comparisons(self) -> list[Comparison]:
        path = f"the same, eager module of {PARAMETERS} parameters, no scope"
        return [
            Comparison(path, "modcache, no scope", 0.4, RIVAL.name, within_us=0.020 * PARAMETERS)
        ]

    def limits(self) -> list[Comparison]:
        path = f"memory hit, {PARAMETERS} parameters, no scope, beside the module"
        return [beside_limit(path, "modcache, no scope", 0.15, "the module")]

    def measure(self, place: Place) -> Figures:
        ours.use(place)
        module, keys = deep(), keys_of(KEYS)
        inputs = [torch.full((1, 16), float(number)) for number in range(KEYS)]
        wanted = [module(x) for x in inputs]

        def by_lookup(number: int) -> Any:
            return modcache.lookup_or_run(module, inputs[number], keys[number])

        def with_scope(number: int) -> Any:
            return modcache.lookup_or_run(module, inputs[number], keys[number], scope="deep")

        cached = modcache.cached(module, key="name")
        subjects: dict[str, timing.Call] = {
            "modcache, no scope": by_lookup,
            "modcache, scope": with_scope,
            "modcache.cached": lambda number: cached(inputs[number], name=keys[number]),
            "the module": lambda number: module(inputs[number]),
        }
        if stores.there(RIVAL):
            rival = RIVAL(place.folder, SIZES["2 KiB"], 1).wrapped(deep())
            subjects[RIVAL.name] = lambda number: rival(inputs[number], cache_key=keys[number])
        for call in subjects.values():
            for number in range(KEYS):
                call(number)
        modcache.reset_stats()

        def check(number: int, value: Tensor) -> bool:
            return torch.allclose(value, wanted[number])

        numbers = [i % KEYS for i in range(4 * place.of(400))]
        figures = timing.by_span(subjects, numbers, 4, check, place.round)
        ours.expect_memory_hits_alone()
        return figures


def measurements() -> list[Measurement]:
    return [*(MemoryHit(size) for size in SIZES.values()), EagerHit()]
