# SPDX-License-Identifier: Apache-2.0
"""What a hit in memory costs Python, one text as key; and a batch of row keys, and mode `off`.

    python tests/bench/python_hits.py [--rounds 9] [--calls 1000] [--json FILE]

One thread, one process. Each figure is the least of many short spans, in microseconds per call;
rounds take every subject in turn, so that noise meets all alike. `bound`: what a hit may cost.
`lookup` is the cheapest operator of the library that returns a tensor, as a measure of the machine.
Peers (torch-module-cache, torchcache) are measured where they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modcache
import torch
from torch import nn

US_PER_SLOT = 0.25  # for each parameter and submodule
BLOCKS = 50
# Calls timed together: so few that a busy machine may leave them alone.
CHUNK = 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.n(x + self.b(torch.relu(self.a(x))))


@dataclass
class Subject:
    name: str
    call: Callable[[], Any]
    bound_us: float | None = None
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    share: float = 1.0  # of the calls that the others get
    least_us: float = float("inf")

    def take_round(self, calls: int) -> None:
        call, now = self.call, time.perf_counter
        with self.within():
            chunk = max(1, int(CHUNK * self.share))
            for _ in range(int(calls * self.share) // chunk):
                started = now()
                for _ in range(chunk):
                    call()
                self.least_us = min(self.least_us, (now() - started) / chunk * 1e6)


def frozen(module: nn.Module) -> Any:
    return module.requires_grad_(False).eval()


def slots_of(module: nn.Module) -> int:
    return sum(1 for _ in module.modules()) + sum(1 for _ in module.parameters())


def hits(x: torch.Tensor) -> Iterator[Subject]:
    def hit(module: nn.Module, scope: str = "", key: Any = "key", of: Any = x) -> Any:
        return lambda: modcache.lookup_or_run(module, of, key, scope=scope)

    small, large = (
        frozen(nn.Linear(16, 16)),
        frozen(nn.Sequential(*[Block() for _ in range(BLOCKS)])),
    )
    bound = US_PER_SLOT * slots_of(large)
    batch, ids = torch.randn(256, 16), torch.arange(256)
    texts = [f"image-{i:06}" for i in range(256)]
    yield Subject("lookup", lambda: torch.ops.cache.lookup("small", "key"))
    yield Subject("eager, scope", hit(small, "small"), 4)
    yield Subject("eager, scope, no_grad", hit(small, "small"), 4, torch.no_grad)
    yield Subject("scripted, scope", hit(torch.jit.script(small), "scripted"), 4)
    yield Subject("scripted", hit(torch.jit.script(small)), 8)
    yield Subject("scripted, 50 blocks", hit(torch.jit.script(large)), None, share=0.5)
    yield Subject("eager", hit(small), None)
    yield Subject("eager, 50 blocks", hit(large), bound, share=0.1)
    yield Subject("eager, 50 blocks, no_grad", hit(large), bound, torch.no_grad, share=0.1)
    yield Subject("eager, 50 blocks, scope", hit(large, "large"), bound, share=0.1)
    yield Subject("256 ids, 50 blocks", hit(large, key=ids, of=batch), None, share=0.05)
    yield Subject("256 texts, 50 blocks", hit(large, key=texts, of=batch), None, share=0.05)
    rows = hit(small, "rows", texts, batch)
    yield Subject("256 texts, scope, no_grad", rows, None, torch.no_grad, share=0.1)
    yield Subject("mode off", hit(small), None, lambda: modcache.mode("off"))
    yield Subject("the module alone", lambda: small(x))


def peers(x: torch.Tensor, folder: str) -> Iterator[Subject]:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    with contextlib.suppress(ImportError):
        peer: Any = importlib.import_module("torch_module_cache")
        level = peer.CacheLevel.MEMORY
        cache = peer.cache_module(cache_path=folder, cache_name="hits", cache_level=level)
        module = frozen(cache(type("M", (Small,), {}))())
        yield Subject("torch-module-cache", lambda: module(x, cache_key="key"), None, torch.no_grad)
    with contextlib.suppress(ImportError):
        other: Any = importlib.import_module("torchcache")
        module_2 = frozen(other.torchcache(persistent=False)(type("M", (Small,), {}))())
        yield Subject("torchcache", lambda: module_2(x), None, torch.no_grad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        modcache.configure(dir=f"{folder}/cache", log="off")
        x = torch.randn(1, 16)
        subjects = [*hits(x), *peers(x, folder)]
        for subject in subjects:
            with subject.within():
                for _ in range(10):  # runs the module, and gets to know it
                    subject.call()
        for _ in range(options.rounds):
            for subject in subjects:
                subject.take_round(options.calls)
        modcache.configure(dir=f"{folder}/elsewhere")
    unit = subjects[0].least_us
    print(f"{'us':>8} {'/lookup':>8} {'bound':>8}")
    for subject in subjects:
        bound = "" if subject.bound_us is None else f"{subject.bound_us:.4g}"
        print(f"{subject.least_us:8.2f} {subject.least_us / unit:8.2f} {bound:>8}  {subject.name}")
    if options.json is not None:
        figures = {subject.name: subject.least_us for subject in subjects}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
