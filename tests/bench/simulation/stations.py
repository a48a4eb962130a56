# SPDX-License-Identifier: Apache-2.0
"""Where work waits its turn: threads and cards that serve in order of arrival."""

from __future__ import annotations

import heapq

import simpy


class Station:
    """``servers`` that take what comes in order, each one thing at a time.

    How long something takes is known when it comes, so the time when it is done is, too: no queue
    has to be kept, and waiting for it is one timeout.
    """

    def __init__(self, env: simpy.Environment, servers: int = 1) -> None:
        self._env = env
        self._free_at = [0.0] * servers
        self.jobs = 0
        self.busy_s = 0.0
        self.waited_s = 0.0

    def delay(self, service_s: float) -> float:
        """Takes work that comes now. How long until it is done."""
        now: float = self._env.now
        begins = max(now, self._free_at[0])
        heapq.heapreplace(self._free_at, begins + service_s)
        self.jobs += 1
        self.busy_s += service_s
        self.waited_s += begins - now
        return begins + service_s - now

    @property
    def backlog_s(self) -> float:
        """How long something that came now would wait."""
        return max(0.0, self._free_at[0] - float(self._env.now))
