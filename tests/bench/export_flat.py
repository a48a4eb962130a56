# SPDX-License-Identifier: Apache-2.0
"""Whether an all-hit call stays as fast when the encoder is made ten times larger.

    python tests/bench/export_flat.py [--rows 64] [--calls 200] [--json]

For an exported program that Python runs, one that AOTInductor compiled (--aoti), and a scripted
model that modcache.freeze lowered and froze: the time of a call in which every row is a hit, with
an encoder and with one of ten times its width. The ratio of the two is near one; that of the same
calls without the cache is near ten. Exits with 1 when a warm ratio is above --most.

With ten times as many layers a program that Python runs takes some 5 us more for each tensor, for
torch.cond takes every weight as an argument; the others do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import modcache
import torch
from torch import nn

WIDTH = 512
Call = Callable[[], object]


class Model(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, inner), nn.ReLU(), nn.Linear(inner, WIDTH))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = modcache.lookup_or_run(self.encoder, x, ids)
        return self.head(features)  # type: ignore[no-any-return]


def calls_of(model: Model, rows: int, *, with_aoti: bool, folder: Path) -> dict[str, Call]:
    x, ids = torch.randn(rows, WIDTH), torch.arange(rows)
    dimension = torch.export.Dim("rows")
    shapes = ({0: dimension}, {0: dimension})
    program = torch.export.export(model, (x, ids), dynamic_shapes=shapes)
    forms = {"exported": program.module(), "frozen": modcache.freeze(torch.jit.script(model))}
    if with_aoti:
        package = str(folder / f"{model.encoder[0].out_features}.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package)
        forms["aoti"] = torch._inductor.aoti_load_package(package)

    def call_of(form: Callable[..., object]) -> Call:
        return lambda: form(x, ids)

    return {name: call_of(form) for name, form in forms.items()}


def median_us(call: Call, count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measured(call: Call, rows: int, count: int) -> dict[str, float]:
    with modcache.mode("off"):
        call()
        cold_us = median_us(call, max(count // 10, 5))
    call()
    before = modcache.stats()
    warm_us = median_us(call, count)
    after = modcache.stats()
    hits = sum(after[name] - before[name] for name in ("hits_memory", "hits_disk"))
    assert hits == rows * count, f"{hits} hits of {rows * count}"
    return {"without_us": cold_us, "hit_us": warm_us}


def report(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        modcache.configure(dir=Path(folder) / "cache")
        sizes = [measured_forms(arguments, inner, Path(folder)) for inner in (WIDTH, 10 * WIDTH)]
        modcache.flush()
    for name, small in sizes[0].items():
        large = sizes[1][name]
        found[name] = {
            **small,
            "hit_us_10x": large["hit_us"],
            "without_us_10x": large["without_us"],
            "hit_ratio": large["hit_us"] / small["hit_us"],
            "without_ratio": large["without_us"] / small["without_us"],
        }
    return found


def measured_forms(
    arguments: argparse.Namespace, inner: int, folder: Path
) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model = Model(inner).requires_grad_(False).eval()
    calls = calls_of(model, arguments.rows, with_aoti=arguments.aoti, folder=folder)
    return {name: measured(call, arguments.rows, arguments.calls) for name, call in calls.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=int, default=64, help="rows of a batch")
    parser.add_argument("--calls", type=int, default=200, help="calls to take the median of")
    parser.add_argument("--most", type=float, default=2.0, help="the largest ratio that is flat")
    parser.add_argument("--aoti", action="store_true", help="compile with AOTInductor, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = report(arguments)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{'form':<10}{'hit us':>10}{'10 x':>10}{'ratio':>8}{'without the cache':>20}")
        for name, one in found.items():
            print(
                f"{name:<10}{one['hit_us']:>10.0f}{one['hit_us_10x']:>10.0f}"
                f"{one['hit_ratio']:>8.2f}{one['without_ratio']:>20.2f}"
            )
    return int(any(one["hit_ratio"] > arguments.most for one in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
