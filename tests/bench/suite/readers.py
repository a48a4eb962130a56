# SPDX-License-Identifier: Apache-2.0
"""Four processes that read one directory at once, beside four that read one mapped file."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from typing import Any

import modcache

from suite import ours, stores
from suite.disk_hits import fill
from suite.measurement import Comparison, Figures, Measurement, Place
from suite.values import SIZES, Size

PROCESSES = 4
KINDS = (stores.Memmap, stores.Lmdb)
MINE = "modcache"
# So many that the processes meet, however short a hit is.
PASSES = {"2 KiB": 16, "151 KB": 4}


class Readers(Measurement):
    """The figures are per value: of one process alone, and of four in the time of all four.

    `growth` is how much longer a value takes one of four processes than one alone, so memmap's over
    ours is memmap's scaling over ours.
    """

    def __init__(self, size: Size) -> None:
        self.size = size
        self.name = f"readers, {size.name}"
        self.title = f"hits of {size.name} on disk and a sum over each, in {PROCESSES} processes"

    def comparisons(self) -> list[Comparison]:
        path = f"four reader processes, {self.size.name}, time of a hit beside one alone"
        return [Comparison(path, f"{MINE}, growth", 1.0, "memmap, growth")]

    def prepare(self, place: Place) -> None:
        count = place.of(self.size.count)
        fill(KINDS, place, self.size, count)
        ours.use(place)
        mine = ours.Ours(self.size, count)
        for number in range(count):
            mine.one_key(number)
        modcache.flush()

    def measure(self, place: Place) -> Figures:
        figures: dict[str, float] = {}
        names = [MINE, *(kind.name for kind in stores.there(*KINDS))]
        random.Random(place.round).shuffle(names)
        for name in names:
            alone = together(1, self.size, place, name)[0]
            several = together(PROCESSES, self.size, place, name)
            figures[f"{name}, alone"] = alone
            figures[f"{name}, of four"] = sum(several) / len(several)
            figures[f"{name}, growth"] = figures[f"{name}, of four"] / alone
        return figures


def together(processes: int, size: Size, place: Place, name: str) -> list[float]:
    """Microseconds per value in each of the processes, which begin at one time."""
    context: Any = multiprocessing.get_context("forkserver")
    started = []
    for rank in range(processes):
        here, there = context.Pipe()
        process = context.Process(target=_read, args=(there, size, place, name, rank))
        process.start()
        there.close()
        started.append((process, here))
    for _, here in started:
        here.recv()
    for _, here in started:
        here.send("go")
    times = [here.recv() for _, here in started]
    for process, _ in started:
        process.join()
    return times


def _read(conn: Connection, size: Size, place: Place, name: str, rank: int) -> None:
    """Opens, reads some values to get to know the way, and all of them once it is told to."""
    import torch

    torch.set_num_threads(1)
    count = place.of(size.count)
    if name == MINE:
        ours.use(place, memory=0)
        get: Any = ours.Ours(size, count).one_key
    else:
        kind = next(kind for kind in KINDS if kind.name == name)
        store = kind(place.shared, size, count)
        store.open()
        get = store.get
    order = list(range(count))
    random.Random(place.round * PROCESSES + rank).shuffle(order)
    for number in order[:8]:
        get(number).sum()
    conn.send("ready")
    conn.recv()
    began = time.perf_counter_ns()
    for _ in range(PASSES[size.name]):
        for number in order:
            get(number).sum()
    took = (time.perf_counter_ns() - began) / count / PASSES[size.name] / 1e3
    if name == MINE:
        ours.expect_no_misses()
    conn.send(took)
    conn.close()


def measurements() -> list[Measurement]:
    return [Readers(SIZES["2 KiB"]), Readers(SIZES["151 KB"])]
