# SPDX-License-Identifier: Apache-2.0
"""Small cases, by modcache itself and by the simulation: `python -m simulation.check`.

Processes with a directory each ("machines") share a redis-server on loopback. What their parts cost
they measure a moment before, all at once, as they share the processors with each other and with
whatever else runs; the simulation gets these costs. The module sleeps, so that it takes none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulation.caller import EPOCHS, SHARES, Case
from simulation.parameters import Run
from simulation.real import Place, Real, real
from simulation.simulate import Epoch, simulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "remote"))

from redis_servers import RedisServer

CASES = (
    Case("2 machines, 2 KiB", 2, 512, 8192, 128, 0.0005),
    Case("4 machines, 2 KiB", 4, 512, 8192, 128, 0.0005),
    Case("2 machines, 150 KB", 2, 37_824, 768, 32, 0.005),
    Case("4 machines, 150 KB", 4, 37_824, 768, 32, 0.005),
)


def one_round(case: Case) -> tuple[list[Real], list[Epoch], Run]:
    with (
        tempfile.TemporaryDirectory(prefix="mc-") as place,
        RedisServer(Path(place) / "server") as server,
    ):
        reals, run = real(case, Place(server.address, server.process_id, place))
    return reals, simulate(run), run


def check(case: Case, rounds: int) -> dict[str, Any]:
    taken = [one_round(case) for _ in range(rounds)]
    result: dict[str, Any] = {"case": asdict(case), "epochs": []}
    for i in range(EPOCHS):
        seen_s = statistics.median(reals[i].seconds for reals, _, _ in taken)
        simulated_s = statistics.median(epochs[i].seconds for _, epochs, _ in taken)
        ratios = [epochs[i].seconds / reals[i].seconds for reals, epochs, _ in taken]
        result["epochs"].append(
            {
                "measured s": seen_s,
                "simulated s": simulated_s,
                "simulated over measured": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
                "measured shares": taken[-1][0][i].shares,
                "simulated shares": {t: taken[-1][1][i].share(t) for t in SHARES},
            }
        )
    result["parameters"] = asdict(taken[-1][2])
    return result


def show(result: dict[str, Any]) -> None:
    for i, epoch in enumerate(result["epochs"], 1):
        shares = "  ".join(
            f"{tier} {epoch['measured shares'][tier]:.1%} {epoch['simulated shares'][tier]:.1%}"
            for tier in SHARES
        )
        ratio = f"{epoch['simulated over measured']:.2f}"
        print(
            f"{result['case']['name']:30} epoch {i}: {epoch['measured s']:.3f} s measured, "
            f"{epoch['simulated s']:.3f} s simulated, ratio {ratio} "
            f"({epoch['least']:.2f} to {epoch['most']:.2f});  {shares}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.check", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--json", type=Path, help="writes what was found to this file")
    arguments = parser.parse_args()
    results = []
    for case in CASES:
        if arguments.only in case.name:
            results.append(check(case, arguments.rounds))
            show(results[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
