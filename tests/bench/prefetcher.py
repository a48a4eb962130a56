# SPDX-License-Identifier: Apache-2.0
"""How much of a loader's time a Prefetcher hides behind training steps, on the CPU.

    python tests/bench/prefetcher.py [--batches 200] [--rounds 5]

A batch takes the loader a wait (a disk, a decoder in another process) and the training step a
matrix product. Each round takes the loader alone, the steps alone, the plain loop, and the loop
over a Prefetcher; the fastest round of each counts. *hidden*: the share of the loader's time that
the plain loop pays and the Prefetcher does not, of what could be hidden at all (the smaller of the
two times). *per batch*: what a Prefetcher costs when neither takes any time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any

import modcache
import torch


class Loader:
    """Batches that each take ``wait_s`` seconds."""

    def __init__(self, count: int, wait_s: float) -> None:
        self.count = count
        self.wait_s = wait_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.count):
            if self.wait_s:
                time.sleep(self.wait_s)
            yield torch.full((64, 512), float(i))


def seconds(loader: Iterable[Any], weight: torch.Tensor | None) -> float:
    started = time.perf_counter()
    for batch in loader:
        if weight is not None:
            for _ in range(20):
                batch = (batch @ weight).relu_()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    weight = torch.randn(512, 512) / 32
    idle = Loader(options.batches, 0)
    steps_s = min(seconds(idle, weight) for _ in range(options.rounds))
    print(f"{'loader / steps':>15} {'plain':>8} {'ahead':>8} {'hidden':>7}")
    for ratio in (0.5, 1.0, 2.0):
        loader = Loader(options.batches, ratio * steps_s / options.batches)
        ahead = modcache.Prefetcher(loader, device="cpu")
        rounds = range(options.rounds)
        alone_s = min(seconds(loader, None) for _ in rounds)
        plain_s = min(seconds(loader, weight) for _ in rounds)
        ahead_s = min(seconds(ahead, weight) for _ in rounds)
        hidden = (plain_s - ahead_s) / min(alone_s, steps_s)
        print(f"{ratio:>15} {plain_s:>7.2f}s {ahead_s:>7.2f}s {hidden:>7.0%}")
    plain_s = min(seconds(idle, None) for _ in range(options.rounds))
    ahead_s = min(
        seconds(modcache.Prefetcher(idle, device="cpu"), None) for _ in range(options.rounds)
    )
    print(f"per batch: {(ahead_s - plain_s) / options.batches * 1e6:.0f} us")


if __name__ == "__main__":
    main()
