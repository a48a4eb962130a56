# SPDX-License-Identifier: Apache-2.0
"""DataLoaders with real workers: every start method, ranks on one directory, killed workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import modcache
import numpy as np
import pytest
import torch
from processes import ProcessRunner, hear, tell
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

WORKERS = 4
SAMPLES = 64
NUMBERS = 1 << 17  # 512 KiB a sample
COPY_BYTES = SAMPLES * NUMBERS * 4


class Sample(NamedTuple):
    numbers: torch.Tensor
    index: int
    name: bytes


class RawFiles(Dataset[Sample]):
    """One raw file for each sample; whoever opens one that is gone fails."""

    def __init__(self, directory: Path, size: int = SAMPLES) -> None:
        self.paths = [directory / f"{index}.raw" for index in range(size)]

    def write(self, numbers: int = NUMBERS) -> None:
        self.paths[0].parent.mkdir()
        for index, path in enumerate(self.paths):
            path.write_bytes(np.full(numbers, index, dtype=np.float32).tobytes())

    def delete(self) -> None:
        for path in self.paths:
            path.unlink()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        raw = np.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=np.float32)
        return Sample(torch.from_numpy(raw), index, self.paths[index].name.encode())


class WithWorker(Dataset[Any]):
    """What comes after the cache in a worker: its samples, and how the worker sees the cache."""

    def __init__(self, samples: modcache.CachedDataset[Sample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = self.samples.__getitems__(indices)
        return [samples, modcache.settings(), modcache.stats(), os.getpid()]


def check(samples: list[Sample], numbers: int = NUMBERS) -> list[int]:
    for sample in samples:
        assert type(sample) is Sample
        assert sample.name == f"{sample.index}.raw".encode()
        assert sample.numbers.shape == (numbers,)
        assert bool((sample.numbers == sample.index).all())
    return [sample.index for sample in samples]


def resident_bytes(pids: set[int]) -> int:
    """PSS: what is shared among n processes counts as an n-th in each."""
    total_kib = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total_kib += next(int(line.split()[1]) for line in text.splitlines() if "Pss:" in line)
    return total_kib * 1024


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_second_epoch_opens_no_raw_file_and_no_worker_holds_a_copy(
    method: str, tmp_path: Path, cache_dir: Path
) -> None:
    modcache.configure(memory="2GB", match="none")
    raw = RawFiles(tmp_path / "raw")
    raw.write()
    loader = DataLoader(
        WithWorker(modcache.CachedDataset(raw)),
        batch_size=2,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context=method,
        collate_fn=list,
    )

    def epoch() -> dict[int, dict[str, int]]:
        seen = []
        stats_of = {}
        for samples, settings, stats, pid in loader:
            seen += check(samples)
            assert settings["dir"] == str(cache_dir)
            assert settings["match"] == "none"
            assert settings["memory"] == "0"
            assert (stats["bytes_memory"], stats["errors"], stats["corrupt"]) == (0, 0, 0)
            stats_of[pid] = stats
        assert sorted(seen) == list(range(SAMPLES))
        return stats_of

    cold = epoch()
    assert sum(stats["misses"] for stats in cold.values()) == SAMPLES
    before = resident_bytes(set(cold))
    raw.delete()
    for _ in range(4):
        warm = epoch()
    assert sum(stats["misses"] for stats in warm.values()) == SAMPLES
    assert sum(stats["hits_disk"] for stats in warm.values()) == 4 * SAMPLES
    assert len(warm) == WORKERS
    # The one that the page cache holds, and what malloc keeps for the next batch.
    assert resident_bytes(set(warm)) - before < 1.5 * COPY_BYTES


def keep_some_memory(_: int) -> None:
    modcache.configure(memory="64MB")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_may_ask_for_memory_of_its_own(method: str, tmp_path: Path) -> None:
    raw = RawFiles(tmp_path / "raw", size=4)
    raw.write(16)
    loader = DataLoader(
        WithWorker(modcache.CachedDataset(raw)),
        batch_size=4,
        num_workers=1,
        worker_init_fn=keep_some_memory,
        multiprocessing_context=method,
        collate_fn=list,
    )
    ((samples, settings, stats, _),) = loader
    check(samples, 16)
    assert settings["memory"] == str(64 * 10**6)
    assert stats["bytes_memory"] > 0


class Shifted(Dataset[int]):
    def __init__(self) -> None:
        self.shift = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + self.shift


def shift(_: int) -> None:
    get_worker_info().dataset.dataset.shift = 100  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_workers_own_code_changes_is_not_taken_for_the_parents(method: str) -> None:
    dataset = modcache.CachedDataset(Shifted())
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=1,
        worker_init_fn=shift,
        multiprocessing_context=method,
        collate_fn=list,
    )
    assert list(loader) == [[100, 101, 102, 103]]
    assert list(dataset) == [0, 1, 2, 3]


def test_without_a_disk_workers_keep_the_memory_of_their_parent(tmp_path: Path) -> None:
    modcache.configure(disk=0)
    raw = RawFiles(tmp_path / "raw", size=4)
    raw.write(1 << 16)
    dataset = modcache.CachedDataset(raw)
    for index in range(4):
        dataset[index]
    raw.delete()
    loader = DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=list)
    (samples,) = loader
    check(samples, 1 << 16)


def test_what_a_parent_holds_in_memory_stays_its_own(tmp_path: Path) -> None:
    raw = RawFiles(tmp_path / "raw", size=8)
    raw.write(64)
    dataset = modcache.CachedDataset(raw)
    dataset.__getitems__(list(range(8)))
    modcache.flush()  # a worker finds what is on disk, and what waits to be written is not
    held = modcache.stats()["bytes_memory"]
    assert held > 0
    loader = DataLoader(WithWorker(dataset), batch_size=8, num_workers=1, collate_fn=list)
    ((_, settings, stats, _),) = loader
    assert (settings["memory"], stats["entries_memory"]) == ("0", 0)
    assert stats["misses"] == modcache.stats()["misses"]
    assert modcache.stats()["bytes_memory"] == held


class Modes(Dataset[Any]):
    """The modes that a worker sees: its own, and what is left of it in its main thread."""

    def __init__(self, samples: modcache.CachedDataset[Sample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> list[Any]:
        self.samples[index]
        return [modcache.settings()["mode"], modcache.mode(), modcache.stats()["misses"]]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_guard_of_the_training_thread_holds_in_the_main_thread_of_workers(
    tmp_path: Path, method: str
) -> None:
    raw = RawFiles(tmp_path / "raw", size=2)
    raw.write(16)
    loader = DataLoader(
        Modes(modcache.CachedDataset(raw)),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    before = modcache.stats()["misses"] if method == "fork" else 0
    with modcache.mode("read"):
        assert list(loader) == [["on", "read", before + 1], ["on", "read", before + 2]]
    assert next(iter(loader))[:2] == ["on", "read"]
    assert not modcache.contains(loader.dataset.samples.scope, "0")  # type: ignore[attr-defined]
    modcache.set_mode("read")
    started = DataLoader(
        loader.dataset, batch_size=None, num_workers=1, multiprocessing_context=method
    )
    assert next(iter(started))[:2] == ["read", "read"]


def test_default_collation_and_single_samples(tmp_path: Path) -> None:
    raw = RawFiles(tmp_path / "raw", size=6)
    raw.write(1 << 15)
    dataset = modcache.CachedDataset(raw)
    for _ in range(2):
        batches = list(DataLoader(dataset, batch_size=3, num_workers=2))
        assert [batch.index.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
        assert batches[1].numbers[:, 0].tolist() == [3.0, 4.0, 5.0]
        single = DataLoader(dataset, batch_size=None, num_workers=2)
        assert check(list(single), 1 << 15) == list(range(6))
        if raw.paths[0].exists():
            raw.delete()


class Shards(IterableDataset[Any]):
    def __init__(self, raw: RawFiles) -> None:
        self.raw = raw

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        for index in range(worker.id, len(self.raw), worker.num_workers):
            yield {"__key__": str(index), "path": self.raw.paths[index], "index": index}


def opened(sample: dict[str, Any]) -> Sample:
    raw = np.frombuffer(bytearray(sample["path"].read_bytes()), dtype=np.float32)
    return Sample(torch.from_numpy(raw), sample["index"], sample["path"].name.encode())


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_stream_in_workers(method: str, tmp_path: Path) -> None:
    raw = RawFiles(tmp_path / "raw", size=10)
    raw.write(64)
    stream = modcache.CachedIterableDataset(Shards(raw), opened)
    loader = DataLoader(
        stream,
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    assert sorted(check(list(loader), 64)) == list(range(10))
    raw.delete()
    assert sorted(check(list(loader), 64)) == list(range(10))


class Deadly(RawFiles):
    """A worker ends as when memory runs out at sample 9, while its file is short."""

    def __getitem__(self, index: int) -> Sample:
        if index == 9 and self.paths[index].stat().st_size == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def load_until_a_worker_dies(directory: Path) -> str:
    dataset = modcache.CachedDataset(Deadly(directory, size=24))
    try:
        for batch in DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list):
            check(batch, 4096)
    except (RuntimeError, OSError, EOFError):  # whatever of the dead worker is noticed first
        return "a worker died"
    return "no worker died"


def test_a_killed_worker_leaves_a_directory_that_is_right(
    tmp_path: Path, processes: ProcessRunner
) -> None:
    raw = Deadly(tmp_path / "raw", size=24)
    raw.write(4096)
    whole = raw.paths[9].read_bytes()
    raw.paths[9].write_bytes(whole[:4])
    assert processes.run(load_until_a_worker_dies, tmp_path / "raw").value == "a worker died"
    raw.paths[9].write_bytes(whole)
    dataset = modcache.CachedDataset(raw)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list)
    for _ in range(2):
        samples = [sample for batch in loader for sample in batch]
        assert check(samples, 4096) == list(range(24))
    check(dataset.__getitems__(list(range(24))), 4096)
    stats = modcache.stats()
    assert (stats["hits_disk"], stats["errors"], stats["corrupt"]) == (24, 0, 0)
    assert stats["entries_disk"] == 24


def train_as(rank: int, ranks: int, directory: Path, size: int) -> dict[str, int]:
    raw = RawFiles(directory, size)
    dataset = modcache.CachedDataset(raw)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=ranks, rank=rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, collate_fn=list)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epoch_indices = [index for batch in loader for index in check(batch, 512)]
        seen.append(sorted(epoch_indices))
        if epoch == 0:
            tell("one epoch")
            hear()
    modcache.reset_stats()
    check(dataset.__getitems__(list(range(size))), 512)
    return {**modcache.stats(), "distinct epochs": len({tuple(epoch) for epoch in seen})}


def test_ranks_share_one_directory(tmp_path: Path, processes: ProcessRunner) -> None:
    raw = RawFiles(tmp_path / "raw", 32)
    raw.write(512)
    ranks = [processes.start(train_as, rank, 2, tmp_path / "raw", 32) for rank in range(2)]
    for rank in ranks:
        assert rank.receive() == "one epoch"
    raw.delete()
    for rank in ranks:
        rank.send("go on")
    for rank in ranks:
        stats = rank.wait().value
        assert stats["distinct epochs"] == 3
        assert (stats["hits_disk"], stats["misses"], stats["errors"]) == (32, 0, 0)
        assert stats["entries_disk"] == 32
