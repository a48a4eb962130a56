# SPDX-License-Identifier: Apache-2.0
"""A process that calls modcache, as one machine or another of a small case."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modcache
import torch
from torch import nn

from simulation.parameters import Data, Module, Run
from simulation.servers import Samples

torch.set_num_threads(1)

EPOCHS = 3
WARM = 10**8  # numbers that are no samples
TIERS = ("memory", "disk", "remote")
SHARES = (*TIERS, "passed")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Case:
    name: str
    processes: int
    floats: int
    samples: int  # of each process
    batch: int
    row_s: float

    def run(self) -> Run:
        """Returns a run with costs that are nobody's yet."""
        value_bytes = 4 * self.floats
        record_bytes = value_bytes + 150
        return Run(
            trainers=self.processes,
            epochs=EPOCHS,
            batch=self.batch,
            flushes=True,
            data=Data(
                samples=self.samples * self.processes,
                value_bytes=value_bytes,
                stored_bytes=value_bytes + 300,
                server_bytes=record_bytes,
                network_bytes=record_bytes,
            ),
            module=Module(row_s=self.row_s),
        )


class Slow(nn.Module):
    """Rows of a known time each. It adds up how long it really slept."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.base: torch.Tensor
        self.register_buffer("base", torch.randn((1, case.floats), generator=generator))
        self.row_s = case.row_s

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        time.sleep(self.row_s * len(numbers))
        rows = self.base.repeat(len(numbers), 1)
        rows[:, :1] = numbers
        return rows


class Caller:
    """A process that is one machine at a time."""

    def __init__(self, case: Case, address: str, seed: int) -> None:
        self._module = Slow(case).requires_grad_(False).eval()
        self._batch, self._seed = case.batch, seed
        self._address = address

    def become(self, folder: str, is_remote: bool = True, **settings: Any) -> None:
        remote = self._address if is_remote else ""
        modcache.configure(
            dir=folder, remote=remote, remote_timeout_ms=10_000, log="off", **settings
        )
        # Connections, the directory, and what Python does once.
        self._call(list(range(WARM + self._seed, WARM + self._seed + self._batch)))
        modcache.flush()
        modcache.reset_stats()

    def _call(self, numbers: list[int]) -> None:
        keys = [f"sample-{number:09d}" for number in numbers]
        rows = torch.tensor(numbers, dtype=torch.float32)[:, None]
        modcache.lookup_or_run(self._module, rows, keys, scope="check")

    def go(self, samples: Samples, batch: int = 0) -> float:
        batch = batch or self._batch
        batches = [samples[i : i + batch].tolist() for i in range(0, len(samples), batch)]
        started = time.monotonic()
        for numbers in batches:
            self._call(numbers)
        return time.monotonic() - started


def busy_s(process_id: int) -> float:
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
