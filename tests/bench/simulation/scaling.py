# SPDX-License-Identifier: Apache-2.0
"""Makes the runs of docs/scaling.md and prints their table: `python -m simulation.scaling`.

Costs follow from the figures of that page; what it does not say is as in parameters.py.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from simulation.__main__ import scaled
from simulation.parameters import Data, Machine, Module, Run, Server
from simulation.simulate import simulate

SCALE = 0.003
GB, TB = 10**9, 10**12
NODE = Server(memory_bytes=256 * GB, request_s=33e-6, read_s=0.3e-6, write_s=5e-6, byte_s=0.45e-9)
SMALL = Data(
    samples=10**9, value_bytes=2048, stored_bytes=2352, server_bytes=2668, network_bytes=2192
)
LARGE = Data(
    samples=10**8,
    value_bytes=151_296,
    stored_bytes=151_638,
    server_bytes=164_006,
    network_bytes=151_440,
)


def line(alone_us: float, each_us: float, keys: int) -> tuple[float, float]:
    """Returns seconds of a call and of a row, where a key takes so long alone and among `keys`."""
    row_us = (each_us * keys - alone_us) / (keys - 1)
    return max(alone_us - row_us, 0.0) * 1e-6, row_us * 1e-6


def machine_of(
    batch: int,
    data: Data,
    disk_bytes: int,
    *,
    memory: tuple[float, float],
    directory: tuple[float, float],
    server: tuple[float, float],
) -> Machine:
    """Takes figures of the page's first table. What the node does not take is the machine's."""
    call_s, disk_row_s = line(*directory, batch)
    asking_s, row_s = line(*server, batch)
    return Machine(
        disk_bytes=disk_bytes,
        call_s=call_s,
        memory_row_s=line(*memory, batch)[1],
        disk_row_s=disk_row_s,
        remote_call_s=asking_s - call_s - NODE.request_s,
        remote_row_s=row_s - NODE.read_s - data.network_bytes * NODE.byte_s,
    )


SMALL_RUN = Run(
    batch=256,
    data=SMALL,
    module=Module(row_s=0.5e-3, step_s=256 / 20_000),
    machine=machine_of(
        256, SMALL, 3 * TB, memory=(10, 0.8), directory=(13, 1.2), server=(480, 6.5)
    ),
    server=replace(NODE, nodes=13),
)
LARGE_RUN = Run(
    batch=32,
    data=LARGE,
    module=Module(row_s=10e-3, step_s=32 / 1_000),
    machine=machine_of(32, LARGE, 2 * TB, memory=(24, 27), directory=(34, 32), server=(660, 230)),
    server=replace(NODE, nodes=76),
)
FEW = replace(SMALL_RUN, server=replace(NODE, nodes=3, memory_bytes=1500 * GB))
RUNS = [
    *(replace(SMALL_RUN, trainers=trainers) for trainers in (8, 32, 100)),
    replace(FEW, trainers=100),
    *(replace(LARGE_RUN, trainers=trainers) for trainers in (8, 32, 100)),
]


def time_of(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.1f} min"


def row(run: Run) -> str:
    first, second, third = simulate(scaled(run, SCALE))
    steps_s = run.data.samples / run.trainers / run.batch * run.module.step_s
    later = (second, third)
    cells = [
        f"{run.server.nodes} of {run.server.memory_bytes / GB:,.0f} GB, {run.trainers}",
        *(time_of(epoch.seconds / SCALE) for epoch in (first, second, third)),
        time_of(steps_s),
        f"{100 * second.share('remote'):.1f} %",
        "; ".join(f"{100 * epoch.node:.0f} %" for epoch in later),
        "; ".join(f"{epoch.slow_answer_s * 1e3:.1f} ms" for epoch in later),
    ]
    return "| " + " | ".join(cells) + " |"


HEADS = (
    "nodes, trainers",
    "first epoch",
    "second",
    "third",
    "steps alone",
    "from a server",
    "nodes busy",
    "question, 1 in 100 takes",
)


def main() -> int:
    print("| " + " | ".join(HEADS) + " |")
    print("| --- " + "| ---: " * (len(HEADS) - 1) + "|")
    for run in RUNS:
        print(row(run), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
