# SPDX-License-Identifier: Apache-2.0
"""What a call costs while the cache is switched off."""

from __future__ import annotations

from typing import Any

import modcache

from suite import ours, timing
from suite.measurement import Comparison, Figures, Measurement, Place, beside_limit
from suite.values import SIZES, inputs_of, noise


class OffPython(Measurement):
    name = "mode off, Python"
    title = "a call from Python while the cache is off"
    matches = ("none",)

    def comparisons(self) -> list[Comparison]:
        return [
            Comparison(
                "mode off, from Python, over calling the module",
                "modcache.lookup_or_run", 3.0, less="the module", unit="us",
            ),
            Comparison(
                "mode off, a cached module, over calling the module",
                "modcache.cached", 3.0, less="the module", unit="us",
            ),
        ]  # fmt: skip

    def limits(self) -> list[Comparison]:
        path = "mode off, from Python, less the module, beside the module"
        mine, module = "modcache.lookup_or_run", "the module"
        return [beside_limit(path, mine, 2, module, less=module)]

    def measure(self, place: Place) -> Figures:
        ours.use(place)
        size = SIZES["2 KiB"]
        module, inputs = noise(size), inputs_of(64)
        cached: Any = modcache.cached(noise(size), key="key", scope="off")
        subjects: dict[str, timing.Call] = {
            "modcache.lookup_or_run": lambda n: modcache.lookup_or_run(module, inputs[n], "key"),
            "modcache.cached": lambda n: cached(inputs[n], key="key"),
            "the module": lambda n: module(inputs[n]),
        }
        numbers = [i % 64 for i in range(8 * place.of(800))]
        with modcache.mode("off"):
            return timing.by_span(subjects, numbers, 8, seed=place.round)


def measurements() -> list[Measurement]:
    return [OffPython()]
