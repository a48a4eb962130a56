# SPDX-License-Identifier: Apache-2.0
"""What a call costs while the cache is switched off, and where it passes by the cache."""

from __future__ import annotations

import time
from typing import Any

import modcache
import torch
from torch import Tensor, nn

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


class TenMilliseconds(nn.Module):
    """A model whose run takes about 10 ms of one core."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512) / 23, requires_grad=False)
        self.times = 1
        started = time.process_time()
        for _ in range(20):
            self(torch.ones(1, 1))
        self.times = max(1, round(0.2 / (time.process_time() - started)))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.weight)
        for _ in range(self.times):
            y = torch.tanh(y @ self.weight)
        return y[:1] + x


class UniqueKeys(Measurement):
    """Keys of which none comes twice, under ``admission="second"``, beside the mode off.

    What counts is the time of the processor, of all threads of the process.
    """

    name = "unique keys"
    title = "a call whose key never comes again, from Python; time of the processor"
    matches = ("none",)

    def comparisons(self) -> list[Comparison]:
        return [
            Comparison(
                "unique keys, admission=second, a model of 10 ms, over mode off",
                "10 ms, second", 1.05, "10 ms, off", ceiling=2.5,
            ),
            Comparison(
                "unique keys, admission=second, scripted, 2 KiB, over mode off",
                "scripted, second", 3.0, less="scripted, off", unit="us",
            ),
            Comparison(
                "unique keys, admission=second, eager, 2 KiB, over mode off",
                "eager, second", 5.0, less="eager, off", unit="us",
            ),
        ]  # fmt: skip

    def measure(self, place: Place) -> Figures:
        ours.use(place, f"modcache-{place.round}", admission="second")
        small = noise(SIZES["2 KiB"])
        modules = {
            "10 ms": (torch.jit.script(TenMilliseconds().eval()), 1, place.of(48, 12)),
            "scripted": (torch.jit.script(small), 256, place.of(16, 4)),
            "eager": (small, 256, place.of(16, 4)),
        }
        figures: dict[str, float] = {}
        for name, (module, length, spans) in modules.items():
            figures.update(self._figures_of(name, module, length, spans))
        return figures

    def _figures_of(self, name: str, module: Any, length: int, spans: int) -> Figures:
        x = torch.ones(1, 1)
        asked = 0

        def ask() -> None:
            nonlocal asked
            asked += 1
            modcache.lookup_or_run(module, x, f"{name}/{asked}", scope=name)

        # A cheap module under the same scope: the gate closes after one window.
        for number in range(4200):
            modcache.lookup_or_run(nn.Identity(), x, f"{name}/first/{number}", scope=name)
        spent: dict[str, list[float]] = {"off": [], "second": []}
        with timing.no_collection():
            for modes in timing.turns(spent, spans, seed=0):
                for mode in modes:
                    with modcache.mode("off" if mode == "off" else "on"):
                        started = time.process_time_ns()
                        for _ in range(length):
                            ask()
                        took = time.process_time_ns() - started
                    spent[mode].append(took / length / 1e3)
        return {f"{name}, {mode}": sorted(times)[len(times) // 2] for mode, times in spent.items()}


def measurements() -> list[Measurement]:
    return [OffPython(), UniqueKeys()]
