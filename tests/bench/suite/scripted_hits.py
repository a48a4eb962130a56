# SPDX-License-Identifier: Apache-2.0
"""Calls that no Python is between: loops in TorchScript, and a C++ host (call_bench.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import torch
from torch import Tensor, nn

from suite import ours, timing
from suite.measurement import Comparison, Figures, Measurement, Place
from suite.values import SIZES, noise

# Where the targets bench_operators and call_bench were built: tests/bench/run says.
BUILD = "MODCACHE_BENCH_BUILD"
KEY = "sample-000001"


def built(name: str) -> Path:
    return Path(os.environ.get(BUILD, "")) / name


def load_operators() -> None:
    load: Any = torch.ops.load_library
    load(str(built("libbench_operators.so")))


def lacking() -> str:
    """Why there are no operators to compare with; "" if there are."""
    if os.environ.get(BUILD) and built("libbench_operators.so").exists():
        return ""
    return "tests/bench/operators.cpp is not built (MODCACHE_BENCH_BUILD names where it is)"


class Loop(nn.Module):
    """Calls one operator again and again."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


# The scope is named: TorchScript would take two texts in a row for a list of keys.
class NoOperation(Loop):
    def forward(self, x: Tensor, calls: int, key: str, scope: str) -> Tensor:
        out = x
        for _ in range(calls):
            out = torch.ops.modcache_bench.no_operation(self.inner, x, key, scope=scope)
        return out


class CallMethod(Loop):
    def forward(self, x: Tensor, calls: int, key: str, scope: str) -> Tensor:
        out = x
        for _ in range(calls):
            out = torch.ops.modcache_bench.call_method(self.inner, x, key, scope=scope)
        return out


class Lookup(Loop):
    def forward(self, x: Tensor, calls: int, key: str, scope: str) -> Tensor:
        out = x
        for _ in range(calls):
            out = torch.ops.cache.lookup_or_run(self.inner, x, key, scope=scope)
        return out


def script(module: nn.Module) -> Any:
    return torch.jit.script(module.eval())


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def in_turn(
    loops: dict[str, Callable[[int], Any]], place: Place, calls: int = 200
) -> dict[str, float]:
    """Microseconds per call of loops that take their number of calls."""

    def timed(loop: Callable[[int], Any]) -> float:
        started = time.perf_counter_ns()
        loop(calls)
        return (time.perf_counter_ns() - started) / calls / 1e3

    times: dict[str, list[float]] = {name: [] for name in loops}
    with timing.no_collection():
        for names in timing.turns(loops, place.of(400, 40), place.round):
            for name in names:
                times[name].append(timed(loops[name]))
    return {name: sorted(of_name)[len(of_name) // 2] for name, of_name in times.items()}


def from_cpp(match: str, names: dict[str, str], place: Place) -> dict[str, float]:
    """What call_bench measured, in microseconds, by our names of its benchmarks."""
    library = {"MODCACHE_LIBRARY": str(modcache.build_info()["library"]), "MODCACHE_MATCH": match}
    command = [
        str(built("call_bench")),
        "--benchmark_format=json",
        f"--benchmark_filter=^({'|'.join(names)})$",
        f"--benchmark_min_time={0.02 if place.quick else 0.1}",
        "--benchmark_repetitions=5",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_report_aggregates_only=true",
    ]
    said = subprocess.run(
        command, env=os.environ | library, check=True, capture_output=True, text=True
    )
    medians = [
        one for one in json.loads(said.stdout)["benchmarks"] if one["aggregate_name"] == "median"
    ]
    return {names[one["run_name"]]: one["cpu_time"] / 1e3 for one in medians}


class ScriptedHit(Measurement):
    name = "memory hit, C++ and scripted"
    title = "a hit of 2 KiB in memory from TorchScript and from C++"

    def missing(self) -> str:
        return lacking()

    def comparisons(self) -> list[Comparison]:
        path, rival = "memory hit, ", "scripted no-op operator"
        return [
            Comparison(f"{path}scripted, scope", "scripted, scope", 3.3, rival, ceiling=30),
            Comparison(f"{path}scripted, frozen", "scripted, frozen", 3.3, rival),
            Comparison(f"{path}C++, scope", "C++, scope", 3.3, rival, ceiling=30),
        ]

    def measure(self, place: Place) -> Figures:
        load_operators()
        ours.use(place)
        x, inner = torch.ones(1, 1), noise(SIZES["2 KiB"])
        none: Any = script(NoOperation(inner))
        lookup: Any = script(Lookup(inner))
        frozen: Any = modcache.freeze(script(Lookup(inner)))
        loops: dict[str, Callable[[int], Any]] = {
            "scripted no-op operator": lambda calls: none(x, calls, KEY, ours.SCOPE),
            "scripted, scope": lambda calls: lookup(x, calls, KEY, ours.SCOPE),
            "scripted, fingerprint": lambda calls: lookup(x, calls, KEY, ""),
            "scripted, frozen": lambda calls: frozen(x, calls, KEY, ""),
        }
        for loop in loops.values():
            loop(50)
        modcache.reset_stats()
        figures = in_turn(loops, place)
        ours.expect_no_misses()
        names = {"no_operation": "C++ no-op operator", "hit/scope": "C++, scope"}
        names["hit/fingerprint"] = "C++, fingerprint"
        return figures | from_cpp(place.match, names, place)


class OffScripted(Measurement):
    name = "mode off, C++ and scripted"
    title = "a call from TorchScript and from C++ while the cache is off"
    matches = ("none",)

    def missing(self) -> str:
        return lacking()

    def comparisons(self) -> list[Comparison]:
        path = "over an operator that only calls the method"
        return [
            Comparison(
                f"mode off, scripted, {path}", "scripted, off", 50, less="method", unit="ns"
            ),
            Comparison(f"mode off, C++, {path}", "C++, off", 50, less="C++ method", unit="ns"),
        ]

    def measure(self, place: Place) -> Figures:
        load_operators()
        ours.use(place)
        x = torch.zeros(1)
        method: Any = script(CallMethod(Same()))
        lookup: Any = script(Lookup(Same()))
        loops: dict[str, Callable[[int], Any]] = {
            "method": lambda calls: method(x, calls, KEY, ""),
            "scripted, off": lambda calls: lookup(x, calls, KEY, ""),
        }
        with modcache.mode("off"):
            for loop in loops.values():
                loop(50)
            figures = in_turn(loops, place)
        names = {"method_alone": "C++ method", "mode_off": "C++, off"}
        return figures | from_cpp(place.match, names, place)


def measurements() -> list[Measurement]:
    return [ScriptedHit(), OffScripted()]
