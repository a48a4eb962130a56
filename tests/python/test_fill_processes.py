# SPDX-License-Identifier: Apache-2.0
"""modcache.fill that is interrupted or killed, and on two ranks: with real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner, tell
from torch import nn

ROWS = 40
PATIENCE_S = 60.0


class Encoder(nn.Module):
    """Appends the rows that it is run on to a file, but for check runs of one row."""

    def __init__(self, log: str) -> None:
        super().__init__()
        self.log = log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Path(self.log).open("a") as file:
            if len(x) == 1:
                return x * 2
            file.write("".join(f"{int(row)}\n" for row in x))
        return x * 2


def rows_run(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for first in range(0, ROWS, 2):
        ids = torch.arange(first, first + 2)
        yield ids.double(), ids


def stalling(after: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """As batches, but it tells the parent and waits for a signal instead of batch ``after``."""
    for number, batch in enumerate(batches()):
        if number == after:
            tell("waiting")
            time.sleep(PATIENCE_S)
        yield batch


def _interrupted(log: str) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        modcache.fill(Encoder(log), stalling(5), key=1)
    except KeyboardInterrupt:
        return "interrupted"
    return "finished"


def _filled(log: str) -> dict[str, Any]:
    return modcache.fill(Encoder(log), batches(), key=1).as_dict()


def test_ctrl_c_flushes_says_a_summary_and_the_next_fill_goes_on(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    child = processes.start(_interrupted, str(log))
    assert child.receive() == "waiting"
    assert child.process.pid is not None
    os.kill(child.process.pid, signal.SIGINT)
    outcome = child.wait()
    assert outcome.value == "interrupted"
    assert "not finished: 10 rows, 0 hits (0%), 10 run" in outcome.stderr
    assert rows_run(log) == list(range(10))
    summary = processes.run(_filled, str(log)).value
    assert (summary["rows"], summary["hits"], summary["runs"]) == (ROWS, 10, ROWS - 10)
    assert rows_run(log) == list(range(ROWS))


def test_a_killed_fill_goes_on_where_it_was(processes: ProcessRunner, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = processes.start(_interrupted, str(log), env={"MODCACHE_DURABILITY": "strict"})
    assert child.receive() == "waiting"
    child.kill()
    assert rows_run(log) == list(range(10))
    summary = processes.run(_filled, str(log)).value
    assert (summary["hits"], summary["runs"]) == (10, ROWS - 10)
    assert sorted(rows_run(log)) == list(range(ROWS))


def test_of_a_killed_fill_in_relaxed_mode_only_the_last_moments_are_lost(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    child = processes.start(_interrupted, str(log))
    assert child.receive() == "waiting"
    # It committed at most 100 ms after the last row: another process sees that.
    deadline = time.monotonic() + PATIENCE_S
    while modcache.stats()["entries_disk"] < 10:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.kill()
    summary = processes.run(_filled, str(log)).value
    assert (summary["hits"], summary["runs"]) == (10, ROWS - 10)


def _rank(log: str, rank: int, directory: str) -> dict[str, Any]:
    store = torch.distributed.FileStore(f"{directory}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        return modcache.fill(Encoder(log), batches(), key=1).as_dict()
    finally:
        torch.distributed.destroy_process_group()


def test_two_ranks_share_the_work(processes: ProcessRunner, tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"GLOO_SOCKET_IFNAME": "lo"}
    children = [processes.start(_rank, str(log), rank, str(tmp_path), env=env) for rank in range(2)]
    parts = [child.wait().value for child in children]
    assert [(part["rows"], part["runs"]) for part in parts] == [(20, 20), (20, 20)]
    assert sorted(rows_run(log)) == list(range(ROWS))
    assert processes.run(_filled, str(log)).value["hits"] == ROWS


@pytest.mark.parametrize("workers", [2])
def test_ctrl_c_to_the_whole_group_of_a_loader_with_workers(
    processes: ProcessRunner, tmp_path: Path, workers: int
) -> None:
    log = tmp_path / "log"
    child = processes.start(_with_workers, str(log), workers)
    assert child.receive() == "running"
    group = child.process.pid
    assert group is not None
    os.killpg(group, signal.SIGINT)
    outcome = child.wait()
    assert outcome.value in ("KeyboardInterrupt", "RuntimeError")  # a worker may die first
    assert "not finished" in outcome.stderr
    before = rows_run(log)
    summary = processes.run(_filled, str(log)).value
    assert summary["hits"] >= len(before) - 2  # the batch that was interrupted
    assert set(rows_run(log)) == set(range(ROWS))


class Slow(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if index >= 20:
            time.sleep(PATIENCE_S)
        return float(index), index


def _with_workers(log: str, workers: int) -> str:
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = torch.utils.data.DataLoader(
        Slow(), batch_size=2, num_workers=workers, multiprocessing_context="fork"
    )
    encoder = Encoder(log)

    def told() -> Iterator[Any]:
        for number, batch in enumerate(loader):
            yield batch
            if number == 5:
                tell("running")

    try:
        modcache.fill(encoder, told(), key=1)
    except (KeyboardInterrupt, RuntimeError) as error:
        return type(error).__name__
    return "finished"
