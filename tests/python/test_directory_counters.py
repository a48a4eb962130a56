# SPDX-License-Identifier: Apache-2.0
"""What a directory counts beyond the life of a process: workers, killed processes, modes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import modcache
import pytest
import torch
from processes import PROGRAM, ProcessRunner, hear, tell
from torch.utils.data import DataLoader, Dataset


def kept_counts(directory: Path, scope: str | None = None) -> dict[str, int]:
    """What `modcache stats` says of all processes, or of one scope."""
    shown = subprocess.run(
        [PROGRAM, "stats", str(directory), "--json"], check=True, capture_output=True, text=True
    )
    stats = json.loads(shown.stdout)
    if scope is None:
        return dict(stats["counted"])
    return next(row for row in stats["counted"]["by_scope"] if row["scope"] == scope)


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_hits_of_workers_of_a_dataloader_count(cache_dir: Path, start: str) -> None:
    dataset = modcache.CachedDataset(Numbers(), scope="numbers")
    for _ in range(3):
        loader = DataLoader(dataset, num_workers=2, multiprocessing_context=start)
        assert len(list(loader)) == 20
    stats = kept_counts(cache_dir)
    assert (stats["misses"], stats["hits"]) == (20, 40)
    assert modcache.stats()["hits_disk"] == 0, "this process itself looked nothing up"


def lookup(key: str) -> torch.Tensor:
    encoder = torch.nn.Linear(2, 2).requires_grad_(False).eval()
    return modcache.lookup_or_run(encoder, torch.ones(1, 2), key, scope="encoder")


def count_and_wait(directory: str) -> None:
    modcache.configure(dir=directory)
    for _ in range(5):
        lookup("one key")
    tell("counted")
    hear()


def test_a_killed_process_has_counted(cache_dir: Path, processes: ProcessRunner) -> None:
    child = processes.start(count_and_wait, str(cache_dir))
    assert child.receive() == "counted"
    assert kept_counts(cache_dir)["hits"] == 4, "while it runs"
    child.kill()
    assert kept_counts(cache_dir)["hits"] == 4
    assert kept_counts(cache_dir)["misses"] == 1


def test_reset_stats_and_the_directory_have_nothing_to_do_with_each_other(cache_dir: Path) -> None:
    for _ in range(3):
        lookup("key")
    modcache.reset_stats()
    assert kept_counts(cache_dir)["hits"] == 2
    subprocess.run([PROGRAM, "stats", str(cache_dir), "--zero"], check=True, capture_output=True)
    lookup("key")
    assert kept_counts(cache_dir)["hits"] == 1, "a process that runs goes on from zero"
    assert modcache.stats()["hits_memory"] == 1


@pytest.mark.parametrize("forbid", [lambda: modcache.mode("read"), lambda: modcache.mode("off")])
def test_where_nothing_may_be_written_nothing_is_counted(
    cache_dir: Path, forbid: Callable[[], modcache.mode]
) -> None:
    lookup("key")
    before = {path: path.read_bytes() for path in (cache_dir / "counters").iterdir()}
    with forbid():
        for _ in range(50):
            lookup("key")
    after = {path: path.read_bytes() for path in (cache_dir / "counters").iterdir()}
    assert after == before
    assert sum(modcache.stats()[name] for name in ("hits_memory", "bypassed_off")) == 50


def test_the_time_that_hits_saved_adds_up(cache_dir: Path) -> None:
    @modcache.cached(key="key")
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return x + 1

    for _ in range(4):
        slow(torch.ones(2), key="a")
    assert 3 * 50_000 <= kept_counts(cache_dir)["saved_us"] < 3_000_000
