# SPDX-License-Identifier: Apache-2.0
"""A process that trains on a machine of its own, with memory, a directory and a queue of writes.

As in modcache with a directory: what a process runs is kept in its memory, in the directory and,
behind its back, on the server; rows that come from the server are kept in the directory alone. A
tier that is full keeps what it has (the policy `auto` in epochs, docs/eviction.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy

from simulation.parameters import Run
from simulation.servers import Samples, Servers, Steps
from simulation.stations import Station
from simulation.worth import Worth

MEASURED_EVERY_S = 1.0


@dataclass
class Counts:
    memory: int = 0
    disk: int = 0
    remote: int = 0
    run: int = 0
    passed: int = 0  # of those that were run: the server was not asked for them
    late: int = 0  # calls that waited for the server in vain
    dropped: int = 0  # values that were not written

    @property
    def rows(self) -> int:
        return self.memory + self.disk + self.remote + self.run

    def added(self, other: Counts) -> Counts:
        return Counts(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


class Breaker:
    """Leaves a server alone that did not answer: csrc/remote/breaker.h."""

    def __init__(self, env: simpy.Environment, run: Run, servers: Servers) -> None:
        self._env, self._options, self._servers = env, run.options, servers
        self._pause_s = 0.0
        self._probe_at = 0.0

    def note_failure(self) -> None:
        if self._pause_s == 0:
            self._pause_s = self._options.first_pause_s
            self._probe_at = self._env.now + self._pause_s

    def is_closed(self) -> bool:
        while self._pause_s and self._env.now >= self._probe_at:
            if self._servers.round_trip_s() < self._options.timeout_s:
                self._pause_s = 0.0
            else:
                self._pause_s = min(2 * self._pause_s, self._options.longest_pause_s)
                self._probe_at += self._pause_s
        return self._pause_s == 0


class Trainer:
    def __init__(self, env: simpy.Environment, run: Run, servers: Servers) -> None:
        self._env, self._run, self._servers = env, run, servers
        self.counts = Counts()
        self._card = Station(env)
        self._in_memory = np.zeros(run.data.samples, dtype=np.bool_)
        self._on_disk = np.zeros(run.data.samples, dtype=np.bool_)
        self._memory_room = run.machine.memory_bytes // run.data.value_bytes
        self._disk_room = run.machine.disk_bytes // run.data.stored_bytes
        self._disk_bytes = 0
        self._worth = Worth()
        self._breaker = Breaker(env, run, servers)
        self._round_trip_s, self._measured_at = 0.0, -MEASURED_EVERY_S
        self._queue: deque[Samples] = deque()
        self._queued = 0
        self._wakes = env.event()
        self._emptied = env.event()
        env.process(self._write_behind())

    def epoch(self, samples: Samples) -> Steps:
        batch = self._run.batch
        for begin in range(0, len(samples), batch):
            yield from self._step(samples[begin : begin + batch])

    def flush(self) -> Steps:
        while self._queued:
            yield self._emptied

    # --- A step ---

    def _step(self, samples: Samples) -> Steps:
        machine, module = self._run.machine, self._run.module
        in_memory = self._in_memory[samples]
        on_disk = self._on_disk[samples] & ~in_memory
        hits, reads = int(in_memory.sum()), int(on_disk.sum())
        self.counts.memory += hits
        self.counts.disk += reads
        seconds = machine.call_s + hits * machine.memory_row_s + reads * machine.disk_row_s
        yield self._env.timeout(seconds + self._disk_s(reads))
        missing = samples[~in_memory & ~on_disk]
        if len(missing):
            missing = yield from self._ask(missing, len(samples))
        if len(missing):
            yield from self._compute(missing)
        if module.step_s:
            yield self._env.timeout(module.step_s)

    def _disk_s(self, reads: int) -> float:
        """What is not in the page cache is read from the device."""
        machine = self._run.machine
        if self._disk_bytes <= machine.page_cache_bytes:
            return 0.0
        share = 1 - machine.page_cache_bytes / self._disk_bytes
        return reads * self._run.data.stored_bytes * share / machine.disk_bytes_per_s

    def _compute(self, samples: Samples) -> Steps:
        machine, module = self._run.machine, self._run.module
        rows = len(samples)
        self.counts.run += rows
        run_s = module.call_s + rows * module.row_s
        yield self._env.timeout(run_s + rows * machine.miss_row_s)
        self._keep(samples, in_memory=True)
        self._worth.note_runs(run_s / rows, rows)
        self._push(samples)

    def _keep(self, samples: Samples, in_memory: bool) -> None:
        if in_memory:
            taken = samples[: self._memory_room]
            self._in_memory[taken] = True
            self._memory_room -= len(taken)
        taken = samples[: self._disk_room]
        self._on_disk[taken] = True
        self._disk_room -= len(taken)
        self._disk_bytes += len(taken) * self._run.data.stored_bytes

    # --- Asking the servers ---

    def _ask(self, samples: Samples, of_call: int) -> Generator[simpy.Event, object, Samples]:
        """Those that were not found."""
        rows = len(samples)
        if not self._servers.nodes or not self._breaker.is_closed():
            return samples
        if not self._worth.is_worth_asking(rows, self._measured_round_trip_s()):
            self.counts.passed += rows
            return samples
        started = self._env.now
        found = self._servers.find(samples)
        answer = self._servers.read(samples, self._card)
        yield answer | self._env.timeout(self._run.options.timeout_s)
        took_s = self._env.now - started
        if not answer.processed:
            self.counts.late += 1
            self._breaker.note_failure()
            return samples
        self._servers.traffic.took_s.append(took_s)
        hits = int(found.sum())
        self._worth.note_question(rows, hits, took_s, self._measured_round_trip_s())
        yield from self._take(samples[found], of_call)
        return samples[~found]

    def _take(self, samples: Samples, of_call: int) -> Steps:
        machine, module = self._run.machine, self._run.module
        hits = len(samples)
        seconds = machine.remote_call_s + hits * machine.remote_row_s
        if 0 < hits < of_call:
            seconds += of_call * machine.mixed_row_s
        yield self._env.timeout(seconds)
        if hits:
            self.counts.remote += hits
            self._keep(samples, in_memory=False)
            self._worth.note_runs(module.row_s, 0)

    def _measured_round_trip_s(self) -> float:
        """Measured in the background, once a second; not known before that."""
        known = self._round_trip_s
        if self._env.now >= self._measured_at + MEASURED_EVERY_S:
            self._measured_at = self._env.now
            self._round_trip_s = self._servers.round_trip_s()
        return known

    # --- Writing behind ---

    def _push(self, samples: Samples) -> None:
        room = self._run.options.queue_bytes // self._run.data.value_bytes - self._queued
        taken = samples[:room] if self._breaker.is_closed() else samples[:0]
        self.counts.dropped += len(samples) - len(taken)
        if len(taken):
            self._queue.append(taken)
            self._queued += len(taken)
            if not self._wakes.triggered:
                self._wakes.succeed()

    def _write_behind(self) -> Steps:
        options = self._run.options
        most = min(
            options.batch_writes, max(1, options.batch_write_bytes // self._run.data.value_bytes)
        )
        while True:
            if not self._queue:
                self._wakes = self._env.event()
                yield self._wakes
                yield self._env.timeout(options.gather_s)
            waiting = np.concatenate(self._queue)
            taken, left = waiting[:most], waiting[most:]
            self._queue = deque([left] if len(left) else [])
            yield from self._write(taken)
            self._queued -= len(taken)
            if not self._queued:
                self._emptied.succeed()
                self._emptied = self._env.event()

    def _write(self, samples: Samples) -> Steps:
        options = self._run.options
        written = self._servers.write(samples, self._card)
        yield written | self._env.timeout(options.timeout_s * options.times_for_writes)
        if written.processed:
            self._servers.keep(samples)
        else:
            self.counts.dropped += len(samples)
            self._breaker.note_failure()
