# SPDX-License-Identifier: Apache-2.0
"""The nodes that trainers share: what they hold, and how long they take."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from simulation.parameters import Run
from simulation.stations import Station

Samples = NDArray[np.int64]
Steps = Generator[simpy.Event, object, None]


@dataclass
class Traffic:
    """What went over the network since ``forget``, and how long it took."""

    read_bytes: int = 0
    written_bytes: int = 0
    requests: int = 0
    took_s: list[float] = field(default_factory=list)


class Node:
    def __init__(self, env: simpy.Environment, run: Run) -> None:
        self._env, self._run = env, run
        self.thread = Station(env)
        self.sends = Station(env)
        self.receives = Station(env)

    def serve(self, thread_s: float, sent: int, received: int, client: Station) -> Steps:
        """A request from a machine with the card ``client``, and its answer."""
        server = self._run.server
        yield self._env.timeout(server.round_trip_s / 2 + self._transfer(self.receives, received))
        yield self._env.timeout(self.thread.delay(thread_s))
        own_s = self._transfer(self.sends, sent)
        theirs_s = client.delay(sent / self._run.machine.nic_bytes_per_s) if sent else 0.0
        yield self._env.timeout(max(own_s, theirs_s) + server.round_trip_s / 2)

    def _transfer(self, card: Station, size_bytes: int) -> float:
        return card.delay(size_bytes / self._run.server.nic_bytes_per_s) if size_bytes else 0.0


class Servers:
    """All nodes. A sample lies on the node that its number says, as keys are spread by a hash."""

    def __init__(self, env: simpy.Environment, run: Run) -> None:
        self._env, self._run = env, run
        self.nodes = [Node(env, run) for _ in range(run.server.nodes)]
        self.traffic = Traffic()
        self._random = np.random.default_rng((run.seed, 1))
        self._has = np.zeros(run.data.samples, dtype=np.bool_)
        for_entries = run.server.memory_bytes * run.server.nodes * run.server.share_for_entries
        self._room = min(int(for_entries / run.data.server_bytes), run.data.samples)
        self._held = np.empty(self._room, dtype=np.int64)  # what is there, in any order
        self._count = 0

    @property
    def held(self) -> int:
        return self._count

    def find(self, samples: Samples) -> NDArray[np.bool_]:
        return self._has[samples]

    def keep(self, samples: Samples) -> None:
        """A full server drops others for what is new: any of them, as shuffled epochs are asked."""
        new = samples[~self._has[samples]][: self._room]
        places = np.arange(self._count, self._count + len(new))
        if self._count + len(new) > self._room:
            over = places >= self._room
            places[over] = self._random.choice(self._room, int(over.sum()), replace=False)
        self._has[self._held[places[places < self._count]]] = False
        self._held[places] = new
        self._has[new] = True
        self._count = min(self._count + len(new), self._room)

    def read(self, samples: Samples, client: Station) -> simpy.Event:
        """One request for each node. Ends when all have answered."""
        found = self._by_node(samples[self.find(samples)])
        parts = []
        for node, asked in enumerate(self._by_node(samples)):
            if asked:
                sent = int(found[node]) * self._run.data.network_bytes
                self.traffic.read_bytes += sent
                seconds = self._thread_s(int(asked), self._run.server.read_s, sent)
                parts.append(self._start(node, seconds, sent, 0, client))
        return self._env.all_of(parts)

    def write(self, samples: Samples, client: Station) -> simpy.Event:
        parts = []
        for node, count in enumerate(self._by_node(samples)):
            if count:
                received = int(count) * self._run.data.network_bytes
                self.traffic.written_bytes += received
                seconds = self._thread_s(int(count), self._run.server.write_s, received)
                parts.append(self._start(node, seconds, 0, received, client))
        return self._env.all_of(parts)

    def round_trip_s(self) -> float:
        """Returns what a ping of the most loaded node finds."""
        return self._run.server.round_trip_s + max(node.thread.backlog_s for node in self.nodes)

    def _start(
        self, node: int, thread_s: float, sent: int, received: int, client: Station
    ) -> simpy.Event:
        self.traffic.requests += 1
        return self._env.process(self.nodes[node].serve(thread_s, sent, received, client))

    def _thread_s(self, keys: int, key_s: float, size_bytes: int) -> float:
        server = self._run.server
        return server.request_s + keys * key_s + size_bytes * server.byte_s

    def _by_node(self, samples: Samples) -> NDArray[np.int64]:
        # A multiplication spreads neighbours, which a plain remainder would deal out in turn.
        node = (samples * 2_654_435_761 % (1 << 32)) * len(self.nodes) >> 32
        return np.bincount(node, minlength=len(self.nodes))
