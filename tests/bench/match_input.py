# SPDX-License-Identifier: Apache-2.0
"""What `match="input"` adds to a hit, beside `match="none"`, and which edits of an input it sees.

    python tests/bench/match_input.py [--rounds 7]

Batches of 256 keys, all hits in memory, inputs of 2 KiB and of 151 KB; `again` asks for one batch
over and over, `cold` for inputs that the processor's caches no longer hold. Both settings are
measured in turn in one process, and each figure is the median over the rounds, in microseconds per
row. Then, of inputs of each kind, the share of edits that the comparison does not see.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import modcache
import torch
from torch import nn

BATCH = 256
KEYS = list(range(BATCH))


class First(nn.Module):
    """A value per row that is as cheap as a value can be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :16].clone()


def time_per_row(call: Callable[[int], object], repeats: int) -> float:
    begin = time.perf_counter()
    for i in range(repeats):
        call(i)
    return (time.perf_counter() - begin) / repeats / BATCH * 1e6


def measure(elements: int, copies: int, rounds: int, repeats: int) -> dict[str, float]:
    """Of `copies` equal batches, one after the other, so that their bytes leave the caches."""
    module = First().eval()
    batch = torch.randn(BATCH, elements)
    batches = [batch.clone() for _ in range(copies)]
    scope = f"bench-{elements}"
    modcache.lookup_or_run(module, batch, KEYS, scope=scope)
    found: dict[str, list[float]] = {"input": [], "none": []}
    for _ in range(rounds):
        for match, times in found.items():
            modcache.configure(match=match)
            times.append(
                time_per_row(
                    lambda i: modcache.lookup_or_run(
                        module, batches[i % copies], KEYS, scope=scope
                    ),
                    repeats,
                )
            )
    return {match: statistics.median(times) for match, times in found.items()}


def unseen(make: Callable[[], torch.Tensor], edit: Callable[[torch.Tensor], None]) -> float:
    """The share of edited rows that still hit."""
    modcache.configure(match="input", dir=tempfile.mkdtemp(), log="off")
    hits = 0
    for turn in range(4):
        rows = make()
        modcache.lookup_or_run(First(), rows, KEYS, scope=f"edits-{turn}")
        for row in rows:
            edit(row)
        before = modcache.stats()["key_conflicts"]
        modcache.lookup_or_run(First(), rows, KEYS, scope=f"edits-{turn}")
        hits += BATCH - (modcache.stats()["key_conflicts"] - before)
    return hits / (4 * BATCH)


def some(row: torch.Tensor, share: float) -> torch.Tensor:
    """Places of that many elements of a row, side by side."""
    count = max(1, int(row.numel() * share))
    first = int(torch.randint(row.numel() - count + 1, ()))
    return torch.arange(first, first + count)


def overwrite(share: float) -> Callable[[torch.Tensor], None]:
    def edit(row: torch.Tensor) -> None:
        flat = row.view(-1)
        places = some(row, share)
        fresh = (
            torch.randn(len(places))
            if row.is_floating_point()
            else torch.randint(256, (len(places),))
        )
        flat[places] = fresh.to(row.dtype)

    return edit


def digits() -> torch.Tensor:
    """Strokes on black: three random walks of 60 steps on 28 x 28."""
    images = torch.zeros(BATCH, 28, 28)
    for image in images:
        for _ in range(3):
            at = torch.randint(6, 22, (2,))
            for _ in range(60):
                at = (at + torch.randint(-1, 2, (2,))).clamp(0, 27)
                image[at[0], at[1]] = 1.0
    return images


def another(make: Callable[[], torch.Tensor]) -> float:
    """The share of unrelated inputs that still hit."""
    pool = iter(torch.cat([make() for _ in range(4)]))
    return unseen(make, lambda row: row.copy_(next(pool)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    modcache.configure(dir=tempfile.mkdtemp(), memory="2GB")
    print("microseconds per row     input     none    more")
    for name, elements, copies, repeats in (
        ("2 KiB, again", 512, 1, 200),
        ("2 KiB, cold", 512, 200, 200),
        ("151 KB, again", 37632, 1, 200),
        ("151 KB, cold", 37632, 8, 40),
    ):
        found = measure(elements, copies, rounds, repeats)
        more = found["input"] - found["none"]
        print(f"{name:<22}{found['input']:8.3f} {found['none']:8.3f} {more:7.3f}")

    print("share of edits that are not seen")
    large = lambda: torch.randn(BATCH, 3, 112, 112)  # noqa: E731
    photo = lambda: torch.randint(256, (BATCH, 3, 224, 224), dtype=torch.uint8)  # noqa: E731
    small = lambda: torch.randn(BATCH, 512)  # noqa: E731
    cases: list[tuple[str, float]] = [
        ("another digit, 28 x 28 on black", another(digits)),
        ("another normal vector, 512", another(small)),
        ("another normal image, 3 x 112 x 112", another(large)),
        ("a digit flipped", unseen(digits, lambda row: row.copy_(row.flip(-1)))),
        ("one element of 512 floats", unseen(small, overwrite(0.0))),
        ("5 % of 512 floats", unseen(small, overwrite(0.05))),
        ("one element of 37,632 floats", unseen(large, overwrite(0.0))),
        ("1 % of 37,632 floats, side by side", unseen(large, overwrite(0.01))),
        ("10 % of 37,632 floats, side by side", unseen(large, overwrite(0.1))),
        ("25 % of 37,632 floats, side by side", unseen(large, overwrite(0.25))),
        ("one byte of 150,528", unseen(photo, overwrite(0.0))),
        ("10 % of 150,528 bytes, side by side", unseen(photo, overwrite(0.1))),
    ]
    for name, share in cases:
        print(f"{name:<40}{100 * share:6.1f} %")


if __name__ == "__main__":
    main()
