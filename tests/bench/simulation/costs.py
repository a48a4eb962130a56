# SPDX-License-Identifier: Apache-2.0
"""Each process measures the costs of the parts of a call, while the others do so, too."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import astuple, dataclass
from multiprocessing.synchronize import Barrier

import modcache
import numpy as np

from simulation.caller import TIMEOUT_S, Caller, Case, busy_s
from simulation.parameters import Machine, Server
from simulation.servers import Samples

REPEATS = 3
OTHERS = 10**7  # numbers of more samples
ENDLESS = 1 << 40


@dataclass
class Cost:
    """A phase took so long by the clock, and so much of the server's processor for each process."""

    wall_s: float
    server_s: float

    @property
    def own_s(self) -> float:
        return self.wall_s - self.server_s


def median_cost(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*map(astuple, costs), strict=True)))


def line(few: float, many: float, batch: int, rows: int) -> tuple[float, float]:
    """Splits the seconds of `rows`, in batches of a fourth and whole, between calls and rows."""
    calls = rows / batch
    call_s = max((few - many) / (3 * calls), 0.0)
    return call_s, max(many - calls * call_s, 0.0) / rows


class Measuring:
    """One process of a case. All go through the same phases, and begin each together."""

    def __init__(self, case: Case, caller: Caller, server: int, place: str, all_: Barrier) -> None:
        self._case, self._caller, self._server = case, caller, server
        self._place, self._all = place, all_

    def _cost(self, samples: Samples, batch: int = 0) -> Cost:
        self._all.wait(TIMEOUT_S)
        server_s = busy_s(self._server)
        wall_s = self._caller.go(samples, batch)
        modcache.flush()
        self._all.wait(TIMEOUT_S)
        return Cost(wall_s, (busy_s(self._server) - server_s) / self._case.processes)

    def _far_and_near(
        self, samples: Samples, batch: int, name: str, seen: dict[tuple[str, int], list[Cost]]
    ) -> None:
        """Notes the costs of samples that the server has, and then the directory."""
        self._caller.become(f"{self._place}/{name}")
        costs = [(tier, self._cost(samples, batch)) for tier in ("far", "near")]
        # Where the processors were so busy that the server was passed by, it is no measurement.
        if modcache.stats()["hits_remote"] == len(samples):
            for tier, cost in costs:
                seen[tier, batch].append(cost)

    def _mixed(self, part: int, name: str) -> Cost:
        """Returns the cost of batches of which a half is in memory, the other on the server."""
        samples = np.arange(2 * part)
        samples[::2] += OTHERS
        self._caller.become(f"{self._place}/{name}")
        self._caller.go(samples[::2])
        return self._cost(samples)

    def measure(self) -> tuple[Machine, Server]:
        case, many = self._case, self._case.batch
        few, count = many // 4, self._case.samples
        half = count // 2 // many * many
        part = np.arange(count)
        self._caller.become(f"{self._place}/alone", is_remote=False)
        alone = self._cost(part[:half])
        self._caller.become(f"{self._place}/first")
        fill = self._cost(part)
        memory = self._cost(part)
        seen: dict[tuple[str, int], list[Cost]] = defaultdict(list)
        mixed = []
        for i in range(REPEATS):
            self._far_and_near(part[:half], few, f"few-{i}", seen)
            self._far_and_near(part[:half], many, f"many-{i}", seen)
            mixed.append(self._mixed(half // 2, f"mixed-{i}"))
        far_few, far_many, near_few, near_many = (
            median_cost(seen[tier, batch]) for tier in ("far", "near") for batch in (few, many)
        )
        call_s, disk_row_s = line(near_few.wall_s, near_many.wall_s, many, half)
        request_s, read_s = line(far_few.server_s, far_many.server_s, many, half)
        far_call_s, far_row_s = line(far_few.own_s, far_many.own_s, many, half)
        memory_row_s = max(memory.wall_s - count / many * call_s, 0.0) / count
        mixed_row_s = (median_cost(mixed).own_s - half / many * far_call_s) / half
        miss_s = alone.wall_s - case.row_s * half - half / many * call_s
        machine = Machine(
            memory_bytes=ENDLESS,
            disk_bytes=ENDLESS,
            page_cache_bytes=ENDLESS,
            nic_bytes_per_s=ENDLESS,
            call_s=call_s,
            memory_row_s=memory_row_s,
            disk_row_s=disk_row_s,
            mixed_row_s=max(mixed_row_s - (memory_row_s + far_row_s) / 2, 0.0),
            miss_row_s=max(miss_s, 0.0) / half,
            remote_call_s=max(far_call_s - call_s, 0.0),
            remote_row_s=far_row_s,
        )
        # In the fill nothing was found, so rows that were asked for cost next to nothing.
        write_s = max(fill.server_s - count / many * request_s, 0.0) / count
        server = Server(
            memory_bytes=ENDLESS,
            nic_bytes_per_s=ENDLESS,
            round_trip_s=0.0,
            request_s=request_s,
            read_s=read_s,
            write_s=write_s,
        )
        return machine, server
