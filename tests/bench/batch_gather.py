# SPDX-License-Identifier: Apache-2.0
"""What one key costs in an all-hit batch on disk, beside other ways to gather the same rows.

    python tests/bench/batch_gather.py [--values small large] [--rounds 5] [--json FILE]

Each round is a process of its own, with a warm page cache. It asks every way for the same batches
of random rows, batch by batch, in two phases: `first` asks for each row for the first time
in this process (modcache looks it up in its database and checks its checksum), `again` asks for
all rows once more in another order. Each figure is the median over the rounds of the round's median
call, in microseconds per key; ratios are to NumPy's memmap gather. Fill times and bytes on disk
come along.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import modcache
import numpy as np
import torch

try:
    import lmdb
except ImportError:
    lmdb = None


@dataclass(frozen=True)
class Values:
    name: str
    shape: tuple[int, ...]
    rows: int

    @property
    def row_bytes(self) -> int:
        return 4 * int(np.prod(self.shape))


VALUES = {
    "small": Values("small", (512,), 40_960),  # 2 KiB
    "large": Values("large", (197, 192), 2_560),  # 151 KB
}
BATCH = 256


class Noise(torch.nn.Module):
    """[B, 1] ids -> [B, *shape]: fixed noise with the id as its first number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("base", torch.randn(shape, generator=torch.Generator().manual_seed(7)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = self.base.unsqueeze(0).repeat([ids.size(0)] + [1] * self.base.dim())
        out.flatten(1)[:, 0] = ids[:, 0]
        return out


def key_of(row: int) -> str:
    return f"sample-{row:06d}"


@dataclass
class Batch:
    rows: list[int]
    keys: list[str]
    ids: torch.Tensor
    index: np.ndarray
    inputs: torch.Tensor


class Way:
    """A way to keep rows and to gather a batch of them. Subclasses say how."""

    name = ""

    def __init__(self, folder: Path, values: Values) -> None:
        self.folder, self.values = folder, values

    def create(self) -> None:
        """Before the first fill()."""

    def fill(self, batch: Batch, rows: torch.Tensor) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Until what was filled has been handed to the disk."""

    def open(self) -> None:
        """Before the first gather()."""

    def gather(self, batch: Batch) -> torch.Tensor:
        raise NotImplementedError


def batch_of(rows: list[int]) -> Batch:
    return Batch(
        rows,
        [key_of(row) for row in rows],
        torch.tensor(rows),
        np.array(rows),
        torch.tensor(rows, dtype=torch.float32).view(-1, 1),
    )


class Modcache(Way):
    name = "modcache, text keys"

    def __init__(self, folder: Path, values: Values) -> None:
        super().__init__(folder, values)
        self.module = torch.jit.script(Noise(values.shape).requires_grad_(False).eval())

    def fill(self, batch: Batch, rows: torch.Tensor) -> None:
        self.gather(batch)

    def flush(self) -> None:
        modcache.flush()

    # The overload is named: torch tries them one by one, and a mismatch costs an exception with
    # the printed argument in it (40 us for 256 texts, a millisecond for a tensor of ids).
    def gather(self, batch: Batch) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run.keys(self.module, batch.inputs, batch.keys)


class ModcacheIds(Modcache):
    name = "modcache, ids"

    def gather(self, batch: Batch) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run.ids(self.module, batch.inputs, batch.ids)


class Memmap(Way):
    name = "NumPy memmap gather"
    mode = "r"

    def create(self) -> None:
        self.mode = "w+"
        self.open()

    def fill(self, batch: Batch, rows: torch.Tensor) -> None:
        self.array[batch.rows[0] : batch.rows[-1] + 1] = rows.numpy()

    def flush(self) -> None:
        self.array.flush()

    def open(self) -> None:
        shape = (self.values.rows, *self.values.shape)
        self.array = np.memmap(self.folder / "rows", np.float32, self.mode, shape=shape)

    def gather(self, batch: Batch) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.array[batch.index]))


class FromFile(Memmap):
    name = "torch.from_file, index_select"

    def open(self) -> None:
        super().open()
        count = self.values.rows * self.values.row_bytes // 4
        flat = torch.from_file(str(self.folder / "rows"), size=count, dtype=torch.float32)
        self.tensor = flat.view(self.values.rows, *self.values.shape)

    def gather(self, batch: Batch) -> torch.Tensor:
        return self.tensor.index_select(0, batch.ids)


class Lmdb(Way):
    name = "LMDB"
    readonly = True

    def create(self) -> None:
        self.readonly = False
        self.open()

    def fill(self, batch: Batch, rows: torch.Tensor) -> None:
        with self.env.begin(write=True) as transaction:
            for key, row in zip(batch.keys, rows, strict=True):
                transaction.put(key.encode(), memoryview(row.numpy()).cast("B"))

    def flush(self) -> None:
        self.env.sync(True)

    def open(self) -> None:
        map_size = (self.values.row_bytes * 2 + 8192) * self.values.rows
        self.env = lmdb.open(
            str(self.folder), map_size=map_size, sync=False, metasync=False, readonly=self.readonly
        )

    def gather(self, batch: Batch) -> torch.Tensor:
        out = torch.empty((len(batch.rows), *self.values.shape))
        array = out.numpy()
        with self.env.begin(buffers=True) as transaction:
            for i, key in enumerate(batch.keys):
                stored = np.frombuffer(transaction.get(key.encode()), np.float32)
                array[i] = stored.reshape(self.values.shape)
        return out


class Sqlite(Way):
    name = "SQLite blobs"

    def create(self) -> None:
        self.open()
        self.database.execute("pragma journal_mode=wal")
        self.database.execute("create table rows(key text primary key, value blob)")

    def fill(self, batch: Batch, rows: torch.Tensor) -> None:
        values = [memoryview(row.numpy()).cast("B") for row in rows]
        self.database.execute("begin")
        pairs = zip(batch.keys, values, strict=True)
        self.database.executemany("insert into rows values(?, ?)", pairs)
        self.database.execute("commit")

    def flush(self) -> None:
        self.database.execute("pragma wal_checkpoint(truncate)")

    def open(self) -> None:
        self.database = sqlite3.connect(self.folder / "rows.sqlite", isolation_level=None)
        self.database.execute("pragma synchronous=normal")

    def gather(self, batch: Batch) -> torch.Tensor:
        out = torch.empty((len(batch.rows), *self.values.shape))
        array = out.numpy()
        place = {key: i for i, key in enumerate(batch.keys)}
        marks = ",".join("?" * len(batch.keys))
        question = f"select key, value from rows where key in ({marks})"
        for key, value in self.database.execute(question, batch.keys):
            array[place[key]] = np.frombuffer(value, np.float32).reshape(self.values.shape)
        return out


WAYS: list[type[Way]] = [Modcache, ModcacheIds, Memmap, FromFile, Sqlite]
if lmdb is not None:
    WAYS.append(Lmdb)


def ways_in(folder: Path, values: Values) -> list[Way]:
    """modcache's two share one directory, in which 7 and "sample-7" are different keys."""
    modcache.configure(dir=folder / "modcache", memory=0)
    ways = []
    for kind in WAYS:
        place = folder / kind.__name__
        place.mkdir(exist_ok=True)
        ways.append(kind(place, values))
    return ways


def fill(folder: Path, values: Values, way_name: str) -> dict[str, float]:
    """One way's rows, batch by batch; the batches are made outside the timed part."""
    way = next(way for way in ways_in(folder, values) if way.name == way_name)
    before = bytes_on_disk(folder)
    module = Noise(values.shape)
    way.create()
    took = 0.0
    for first_row in range(0, values.rows, BATCH):
        batch = batch_of(list(range(first_row, min(first_row + BATCH, values.rows))))
        rows = module(batch.inputs)
        started = time.perf_counter()
        way.fill(batch, rows)
        took += time.perf_counter() - started
    started = time.perf_counter()
    way.flush()
    flushed = time.perf_counter() - started
    return {
        "fill_us": 1e6 * took / values.rows,
        "flush_us": 1e6 * flushed / values.rows,
        "disk": (bytes_on_disk(folder) - before) / (values.rows * values.row_bytes),
    }


def bytes_on_disk(folder: Path) -> int:
    files = [file.stat() for file in folder.rglob("*") if file.is_file()]
    return sum(512 * file.st_blocks for file in files)


def timed(gather: Callable[[Batch], torch.Tensor], batch: Batch) -> float:
    """Microseconds per key; the rows are checked, and let go, outside."""
    started = time.perf_counter_ns()
    out = gather(batch)
    took = time.perf_counter_ns() - started
    if not torch.equal(out.flatten(1)[:, 0], batch.inputs[:, 0]):
        raise SystemExit("a wrong row")
    return took / 1e3 / len(batch.rows)


def batches(values: Values, seed: int) -> Iterator[Batch]:
    """Every row once, in random order."""
    order = np.random.default_rng(seed).permutation(values.rows).tolist()
    for begin in range(0, values.rows - BATCH + 1, BATCH):
        yield batch_of(order[begin : begin + BATCH])


def measure(folder: Path, values: Values, seed: int) -> dict[str, dict[str, float]]:
    ways = ways_in(folder, values)
    for way in ways:
        way.open()
    figures: dict[str, dict[str, float]] = {way.name: {} for way in ways}
    order = random.Random(seed)
    for phase in ("first", "again"):
        samples: dict[str, list[float]] = {way.name: [] for way in ways}
        for batch in batches(values, seed if phase == "first" else seed + 1000):
            # In a new order each time: one way's call finds the caches as another's left them.
            for way in order.sample(ways, len(ways)):
                samples[way.name].append(timed(way.gather, batch))
        for name, of_way in samples.items():
            figures[name][phase] = statistics.median(of_way)
    if modcache.stats()["misses"] != 0:
        raise SystemExit("modcache ran the module")
    return figures


def in_process(arguments: list[str]) -> dict[str, object]:
    """What this script prints in a fresh process."""
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def report(values: Values, figures: dict[str, dict[str, float]]) -> None:
    print(f"\n{values.rows:,} values of {values.row_bytes:,} bytes, batches of {BATCH}")
    columns = ("first, us", "ratio", "again, us", "ratio", "fill, us", "flush, us", "disk")
    print(f"{'':30s}" + "".join(f"{column:>11s}" for column in columns))
    memmap = figures[Memmap.name]
    for name, one in figures.items():
        ratios = [one[phase] / memmap[phase] for phase in ("first", "again")]
        cells = (one["first"], ratios[0], one["again"], ratios[1], one["fill_us"], one["flush_us"])
        print(
            f"{name:30s}" + "".join(f"{cell:11.2f}" for cell in (*cells,)) + f"{one['disk']:11.3f}"
        )


def run(values: Values, rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    same = [str(folder), "--values", values.name, "--rows", str(values.rows)]
    figures = {}
    for kind in WAYS:
        figures[kind.name] = in_process(["--fill", kind.name, "--folder", *same])
    samples = []
    for number in range(rounds):
        samples.append(in_process(["--measure", str(number), "--folder", *same]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    for name, one in figures.items():
        for phase in ("first", "again"):
            one[phase] = statistics.median(sample[name][phase] for sample in samples)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", nargs="*", choices=VALUES, default=list(VALUES))
    parser.add_argument("--rows", type=int, help="how many, instead of the usual number")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--folder", type=Path, help="where the rows are kept; default: temporary")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    chosen = [VALUES[name] for name in given.values]
    chosen = [replace(values, rows=given.rows or values.rows) for values in chosen]
    with torch.no_grad():
        if given.fill is not None:
            print(json.dumps(fill(given.folder, chosen[0], given.fill)))
            return
        if given.measure is not None:
            print(json.dumps(measure(given.folder, chosen[0], given.measure)))
            return
    results = {}
    for values in chosen:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            results[values.name] = run(values, given.rounds, Path(folder))
        report(values, results[values.name])
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
