# SPDX-License-Identifier: Apache-2.0
"""`python -m simulation`: the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from simulation.parameters import Data, Machine, Module, Options, Run, Server
from simulation.simulate import Epoch, simulate

GROUPS = {"data": Data, "module": Module, "machine": Machine, "server": Server, "options": Options}
UNITS = {
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def number(text: str) -> float:
    """`2Gi` is 2 * 2^30, `25G` is 25 * 10^9, `20e-6` is what it is."""
    for unit in sorted(UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * UNITS[unit]
    return float(text)


def whole_number(text: str) -> int:
    return round(number(text))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m simulation",
        description="Trainers with memory and a directory each, and the servers that they share. "
        "Times are in seconds, sizes in bytes; numbers may end with k, M, G, T, Ki, Mi, Gi, Ti.",
    )
    usual = Run()
    made.add_argument("--trainers", type=whole_number, default=usual.trainers)
    made.add_argument("--epochs", type=whole_number, default=usual.epochs)
    made.add_argument("--batch", type=whole_number, default=usual.batch)
    made.add_argument("--seed", type=whole_number, default=usual.seed)
    made.add_argument(
        "--whole",
        action="store_true",
        help="each trainer asks for all samples in each epoch, and not for its part of them",
    )
    made.add_argument(
        "--flush", action="store_true", help="all is written before the next epoch begins"
    )
    made.add_argument(
        "--scale",
        type=number,
        default=1.0,
        help="of samples, memory, disk, page cache and servers' memory: 0.001 for a thousandth",
    )
    made.add_argument("--json", action="store_true")
    for group, fields in GROUPS.items():
        options = made.add_argument_group(group)
        for field in dataclasses.fields(fields):
            kind = number if isinstance(field.default, float) else whole_number
            name = f"--{group}-{field.name.replace('_', '-')}"
            options.add_argument(name, type=kind, default=field.default, help="%(default)s")
    return made


def run_of(arguments: argparse.Namespace) -> Run:
    parts: dict[str, Any] = {}
    for group, fields in GROUPS.items():
        values = {
            f.name: getattr(arguments, f"{group}_{f.name}") for f in dataclasses.fields(fields)
        }
        parts[group] = fields(**values)
    run = Run(
        trainers=arguments.trainers,
        epochs=arguments.epochs,
        batch=arguments.batch,
        seed=arguments.seed,
        is_sharded=not arguments.whole,
        flushes=arguments.flush,
        **parts,
    )
    return scaled(run, arguments.scale)


def scaled(run: Run, scale: float) -> Run:
    """All that is a number of samples; rates and queues stay, so that loads are the same."""
    machine, server = run.machine, run.server
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, samples=round(run.data.samples * scale)),
        machine=dataclasses.replace(
            machine,
            memory_bytes=round(machine.memory_bytes * scale),
            disk_bytes=round(machine.disk_bytes * scale),
            page_cache_bytes=round(machine.page_cache_bytes * scale),
        ),
        server=dataclasses.replace(server, memory_bytes=round(server.memory_bytes * scale)),
    )


def table(epochs: list[Epoch]) -> str:
    lines = [
        f"{'epoch':>5} {'s':>9} {'memory':>7} {'disk':>7} {'remote':>7} {'run':>7} {'passed':>7} "
        f"{'late':>5} {'dropped':>8} {'nodes':>6} {'busiest':>7} {'card':>6} {'waits us':>9} "
        f"{'answer us':>10} {'1 in 100':>9} {'read GB':>8} {'written':>8}"
    ]
    for i, epoch in enumerate(epochs, 1):
        counts = epoch.counts
        shares = "".join(f" {epoch.share(n):7.1%}" for n in ("memory", "disk", "remote", "run"))
        lines.append(
            f"{i:5} {epoch.seconds:9.3f}{shares} {epoch.share('passed'):7.1%} {counts.late:5} "
            f"{counts.dropped:8} {epoch.node:6.1%} {epoch.busiest_node:7.1%} "
            f"{epoch.busiest_card:6.1%} {epoch.waited_s * 1e6:9.1f} {epoch.answer_s * 1e6:10.1f} "
            f"{epoch.slow_answer_s * 1e6:9.1f} {epoch.read_bytes / 1e9:8.3f} "
            f"{epoch.written_bytes / 1e9:8.3f}"
        )
    return "\n".join(lines)


def main() -> int:
    arguments = parser().parse_args()
    run = run_of(arguments)
    epochs = simulate(run)
    if arguments.json:
        result = {"run": dataclasses.asdict(run), "epochs": [dataclasses.asdict(e) for e in epochs]}
        print(json.dumps(result, indent=1))
    else:
        print(table(epochs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
