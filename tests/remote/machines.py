# SPDX-License-Identifier: Apache-2.0
"""Machines that share a server, and modules with a fixed run time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import modcache
import torch
from torch import nn

RUN_S = 0.06


def with_parameter(address: str, parameter: str) -> str:
    return address + ("&" if "?" in address else "?") + parameter


class Slow(nn.Module):
    """A linear layer whose run takes a known time."""

    def __init__(self, size: int = 8, run_s: float = RUN_S) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.run_s = run_s
        self.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.run_s)
        return self.linear(x)


def slow_module(size: int = 8, run_s: float = RUN_S) -> Slow:
    """The same weights each time, as machines that load one checkpoint have them."""
    torch.manual_seed(7)
    return Slow(size, run_s)


class Machines:
    """Machines with a directory each; this process is one of them at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machines = 0

    def become(self, name: str, address: str, **options: Any) -> None:
        """Leaves the machine before with all that it wrote on the server."""
        modcache.flush()
        # Another time-out makes another tier, which has no connections yet.
        self._machines += 1
        options = {"remote_timeout_ms": 2000 + self._machines, **options}
        modcache.configure(dir=self._folder / name, remote=address, **options)
        modcache.reset_stats()


def counted(*names: str) -> tuple[int, ...]:
    """These counters as they stand."""
    stats = modcache.stats()
    return tuple(stats[name] for name in names)
