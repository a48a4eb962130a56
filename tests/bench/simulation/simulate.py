# SPDX-License-Identifier: Apache-2.0
"""Runs a simulation, and says what each epoch of it was like."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import simpy

from simulation.parameters import Run
from simulation.servers import Samples, Servers, Steps, Traffic
from simulation.trainer import Counts, Trainer


@dataclass(frozen=True)
class Epoch:
    """What all trainers together did until the last of them was at its end."""

    seconds: float
    counts: Counts
    busiest_node: float  # share of the epoch that its thread was at work
    node: float  # the same of all nodes on average
    busiest_card: float  # of a node, in the direction that had more
    waited_s: float  # by a request, for the node's thread, on average
    answer_s: float  # of a call's question, the median
    slow_answer_s: float  # of one in a hundred, at least
    read_bytes: int
    written_bytes: int

    def share(self, name: str) -> float:
        return float(getattr(self.counts, name)) / max(self.counts.rows, 1)


@dataclass
class _Marks:
    """What stations had done when an epoch began."""

    thread_s: list[float]
    sent_s: list[float]
    received_s: list[float]
    jobs: int
    waited_s: float

    @classmethod
    def of(cls, servers: Servers) -> _Marks:
        nodes = servers.nodes
        return cls(
            [node.thread.busy_s for node in nodes],
            [node.sends.busy_s for node in nodes],
            [node.receives.busy_s for node in nodes],
            sum(node.thread.jobs for node in nodes),
            sum(node.thread.waited_s for node in nodes),
        )


def _growth(before: list[float], after: list[float], seconds: float) -> list[float]:
    return [(b - a) / max(seconds, 1e-12) for a, b in zip(before, after, strict=True)] or [0.0]


def shards(run: Run, epoch: int) -> list[Samples]:
    """What each trainer asks for in this epoch, in its order."""
    if run.is_sharded:
        order = np.random.default_rng((run.seed, 2, epoch)).permutation(run.data.samples)
        return [order[trainer :: run.trainers] for trainer in range(run.trainers)]
    return [
        np.random.default_rng((run.seed, 3, epoch, trainer)).permutation(run.data.samples)
        for trainer in range(run.trainers)
    ]


class _Simulation:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._env = simpy.Environment()
        self._servers = Servers(self._env, run)
        self._trainers = [Trainer(self._env, run, self._servers) for _ in range(run.trainers)]
        self.epochs: list[Epoch] = []

    def go(self) -> None:
        self._env.run(until=self._env.process(self._all()))

    def _all(self) -> Steps:
        for epoch in range(self._run.epochs):
            yield from self._epoch(epoch)

    def _epoch(self, epoch: int) -> Generator[simpy.Event, object, None]:
        started, before = self._env.now, _Marks.of(self._servers)
        self._servers.traffic = Traffic()
        for trainer in self._trainers:
            trainer.counts = Counts()
        dealt = zip(self._trainers, shards(self._run, epoch), strict=True)
        yield self._env.all_of(
            [self._env.process(trainer.epoch(samples)) for trainer, samples in dealt]
        )
        self.epochs.append(self._summary(self._env.now - started, before))
        for trainer in self._trainers if self._run.flushes else ():
            yield from trainer.flush()

    def _summary(self, seconds: float, before: _Marks) -> Epoch:
        after, traffic = _Marks.of(self._servers), self._servers.traffic
        threads = _growth(before.thread_s, after.thread_s, seconds)
        cards = _growth(before.sent_s, after.sent_s, seconds)
        cards += _growth(before.received_s, after.received_s, seconds)
        took_s = np.array(traffic.took_s or [0.0])
        return Epoch(
            seconds=seconds,
            counts=reduce(Counts.added, (trainer.counts for trainer in self._trainers)),
            busiest_node=max(threads),
            node=sum(threads) / len(threads),
            busiest_card=max(cards),
            waited_s=(after.waited_s - before.waited_s) / max(after.jobs - before.jobs, 1),
            answer_s=float(np.median(took_s)),
            slow_answer_s=float(np.percentile(took_s, 99)),
            read_bytes=traffic.read_bytes,
            written_bytes=traffic.written_bytes,
        )


def simulate(run: Run) -> list[Epoch]:
    simulation = _Simulation(run)
    simulation.go()
    return simulation.epochs
