# SPDX-License-Identifier: Apache-2.0
"""A simulation is of these. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Data:
    samples: int = 100_000
    value_bytes: int = 2048
    stored_bytes: int = 2353  # of an entry in the directory
    server_bytes: int = 2668  # of an entry in a server's memory
    network_bytes: int = 2192  # of an entry on its way


@dataclass(frozen=True)
class Module:
    """The part of the model that is cached, and what follows it in each step."""

    call_s: float = 0.0
    row_s: float = 0.001
    step_s: float = 0.0


@dataclass(frozen=True)
class Machine:
    """A trainer's machine, and what calls cost there."""

    memory_bytes: int = GIB
    disk_bytes: int = 100 * GIB
    page_cache_bytes: int = 64 * GIB
    disk_bytes_per_s: float = 2e9
    nic_bytes_per_s: float = 25e9 / 8
    call_s: float = 30e-6
    memory_row_s: float = 1.5e-6
    disk_row_s: float = 2e-6
    mixed_row_s: float = 1e-6  # besides, where rows of a call come from memory and the server
    miss_row_s: float = 20e-6  # beside the module's run
    remote_call_s: float = 100e-6  # beside the server and the network
    remote_row_s: float = 10e-6


@dataclass(frozen=True)
class Server:
    """Each node has one thread that serves, and one card."""

    nodes: int = 1
    memory_bytes: int = 256 * GIB  # of each
    # The rest goes to buffers and fragmentation: the same factor as in docs/scaling.md.
    share_for_entries: float = 0.85
    nic_bytes_per_s: float = 25e9 / 8
    round_trip_s: float = 100e-6
    request_s: float = 20e-6
    read_s: float = 2e-6  # for each value
    write_s: float = 4e-6
    byte_s: float = 0.0


@dataclass(frozen=True)
class Options:
    """Those of modcache, and what its constants are."""

    timeout_s: float = 0.5
    # Nobody waits for a write, so it may take so many times as long: csrc/cache/remote_server.cpp.
    times_for_writes: int = 8
    queue_bytes: int = 256 * MIB
    batch_writes: int = 512
    batch_write_bytes: int = 8 * MIB
    gather_s: float = 0.002
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0


@dataclass(frozen=True)
class Run:
    trainers: int = 4
    epochs: int = 3
    batch: int = 256
    seed: int = 0
    # Each sample is one trainer's in each epoch, another one's in the next; otherwise all have all.
    is_sharded: bool = True
    # Between epochs, in time that counts in none, trainers wait until all they computed is written.
    flushes: bool = False
    data: Data = field(default_factory=Data)
    module: Module = field(default_factory=Module)
    machine: Machine = field(default_factory=Machine)
    server: Server = field(default_factory=Server)
    options: Options = field(default_factory=Options)
