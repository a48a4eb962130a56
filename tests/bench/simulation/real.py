# SPDX-License-Identifier: Apache-2.0
"""Small cases by modcache itself, in a process for each machine."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import TypeVar

import modcache

from simulation.caller import EPOCHS, SHARES, TIERS, TIMEOUT_S, Caller, Case
from simulation.costs import Measuring
from simulation.parameters import Machine, Run, Server
from simulation.simulate import shards

Part = TypeVar("Part", Machine, Server)


@dataclass
class Told:
    """One machine tells this about an epoch."""

    started: float
    ended: float
    counts: dict[str, int]


@dataclass
class Real:
    """An epoch of all machines."""

    seconds: float
    shares: dict[str, float]


@dataclass(frozen=True)
class Place:
    address: str
    server: int  # the id of its process
    folder: str


Answer = tuple[Machine, Server, list[Told]]


def be_a_machine(
    case: Case, place: Place, number: int, all_: Barrier, answers: SimpleQueue[Answer]
) -> None:
    mine = f"{place.folder}/machine-{number}"
    caller = Caller(case, f"{place.address}?prefix=costs-{number}", 1000 * number)
    machine, server = Measuring(case, caller, place.server, mine, all_).measure()
    caller = Caller(case, f"{place.address}?prefix=epochs", 1000 * number)
    caller.become(f"{mine}/epochs")
    answers.put((machine, server, [epoch_of(case, caller, number, i, all_) for i in range(EPOCHS)]))


def epoch_of(case: Case, caller: Caller, number: int, epoch: int, all_: Barrier) -> Told:
    samples = shards(case.run(), epoch)[number]
    before = counted()
    all_.wait(TIMEOUT_S)
    started = time.monotonic()
    caller.go(samples)
    ended = time.monotonic()
    all_.wait(TIMEOUT_S)
    modcache.flush()
    return Told(started, ended, {name: n - before[name] for name, n in counted().items()})


def counted() -> dict[str, int]:
    stats = modcache.stats()
    return {tier: stats[f"hits_{tier}"] for tier in TIERS} | {"passed": stats["remote_passed"]}


def of_all(case: Case, told: Sequence[Told]) -> Real:
    seconds = max(one.ended for one in told) - min(one.started for one in told)
    rows = case.samples * case.processes
    return Real(seconds, {name: sum(one.counts[name] for one in told) / rows for name in SHARES})


def mean_of(parts: Sequence[Part]) -> Part:
    values = {name: [asdict(part)[name] for part in parts] for name in asdict(parts[0])}
    return replace(
        parts[0], **{n: statistics.mean(v) for n, v in values.items() if isinstance(v[0], float)}
    )


def real(case: Case, place: Place) -> tuple[list[Real], Run]:
    """Epochs, and what to simulate: the costs that the same processes measured before."""
    context = multiprocessing.get_context("spawn")
    all_ = context.Barrier(case.processes)
    answers: SimpleQueue[Answer] = context.SimpleQueue()
    children = [
        context.Process(target=be_a_machine, args=(case, place, i, all_, answers))
        for i in range(case.processes)
    ]
    for child in children:
        child.start()
    machines, servers, told = zip(*(answers.get() for _ in children), strict=True)
    for child in children:
        child.join()
    run = replace(case.run(), machine=mean_of(machines), server=mean_of(servers))
    return [of_all(case, epoch) for epoch in zip(*told, strict=True)], run
