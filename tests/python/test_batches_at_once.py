# SPDX-License-Identifier: Apache-2.0
"""Overlapping batches of many threads and processes: right values, one run per key, no deadlock."""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import in_form
from processes import ProcessRunner, tell
from torch import nn

FACES = ("eager", "scripted")
COLUMNS = 8
KEYS = 120  # names of samples that the batches share
BATCH = 24
RUNS: collections.Counter[int] = collections.Counter()  # of each sample in eager Python
_RUNS_LOCK = threading.Lock()
PATIENCE_S = 20.0  # less than the library's own bound on a wait


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "test_batches_at_once.ran":
        with _RUNS_LOCK:
            RUNS.update(arguments[0])


sys.addaudithook(_note)


class Busy(nn.Module):
    """Takes long enough that others ask for the same rows meanwhile."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.jit.is_scripting():
            sys.audit("test_batches_at_once.ran", [int(row) for row in x[:, 0]])
        y = torch.eye(32)
        for _ in range(60):
            y = (y @ y).tanh()
        return x * 3 + y.sum() * 0


def batch(rows: list[int]) -> torch.Tensor:
    return torch.tensor([[float(row)] * COLUMNS for row in rows])


def keys_of(rows: list[int]) -> list[str]:
    return [f"sample-{row:05}" for row in rows]


def is_right(module: Any, rows: list[int], **options: Any) -> bool:
    result = modcache.lookup_or_run(module, batch(rows), keys_of(rows), **options)
    return torch.equal(result, batch(rows) * 3)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each gives, or raises, in threads that start at the same moment."""
    results: list[Any] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def body(index: int) -> None:
        barrier.wait()
        try:
            results[index] = works[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=body, args=(i,), daemon=True) for i in range(len(works))]
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline - time.monotonic())
        assert not thread.is_alive(), "a thread hangs"
    return results


def overlapping_batches(seed: int, count: int) -> list[list[int]]:
    """Batches in any order, with repeated keys."""
    chance = random.Random(seed)
    return [[chance.randrange(KEYS) for _ in range(BATCH)] for _ in range(count)]


def ask_in_threads(face: str, threads: int, seed: int, rounds: int) -> tuple[list[Any], int]:
    """Whether all values were right, thread by thread, and how many keys there were."""
    module = in_form(Busy(), face)
    plans = [overlapping_batches(seed + index, rounds) for index in range(threads)]

    def work(plan: list[list[int]]) -> Callable[[], bool]:
        return lambda: [is_right(module, rows) for rows in plan].count(False) == 0

    answers = at_once(*[work(plan) for plan in plans])
    return answers, len({row for plan in plans for rows in plan for row in rows})


@pytest.mark.parametrize("face", FACES)
def test_ten_threads_run_each_missing_key_once(face: str) -> None:
    is_right(in_form(Busy(), face), [KEYS, KEYS + 1])  # proves the rows
    modcache.reset_stats()
    RUNS.clear()
    answers, distinct = ask_in_threads(face, threads=10, seed=1, rounds=6)
    assert answers == [True] * 10
    stats = modcache.stats()
    assert (stats["misses"], stats["stored"]) == (distinct, distinct)
    assert stats["misses"] + stats["hits_memory"] + stats["hits_disk"] == 10 * 6 * BATCH
    assert (stats["errors"], stats["corrupt"]) == (0, 0)
    if face == "eager":
        assert set(RUNS.values()) == {1}
        assert len(RUNS) == distinct


def ask_with_stats(face: str) -> tuple[list[Any], int, dict[str, int]]:
    # Proves the rows. Before that, a busy machine may take longer for the first batch than the
    # threads wait that have the same keys.
    is_right(in_form(Busy(), face), [KEYS, KEYS + 1])
    modcache.reset_stats()
    answers, distinct = ask_in_threads(face, threads=10, seed=7, rounds=4)
    modcache.flush()
    return answers, distinct, modcache.stats()


def test_four_processes_of_ten_threads(processes: ProcessRunner) -> None:
    children = [processes.start(ask_with_stats, FACES[index % 2]) for index in range(4)]
    for outcome in [child.wait() for child in children]:
        answers, distinct, stats = outcome.value
        assert answers == [True] * 10
        assert stats["misses"] <= distinct, "no process runs a key twice"
        assert stats["misses"] == stats["stored"]
        assert outcome.log_lines == []
        assert (stats["errors"], stats["corrupt"]) == (0, 0)
    for face in FACES:
        answers, distinct, stats = processes.run(ask_with_stats, face).value
        assert answers == [True] * 10
        assert stats["misses"] == 0


# --- No deadlock ------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_batches_in_opposite_orders(face: str) -> None:
    module = in_form(Busy(), face)
    for turn in range(10):
        rows = list(range(turn * 20, turn * 20 + 12))
        answers = at_once(
            lambda rows=rows: is_right(module, rows),  # type: ignore[misc]
            lambda rows=rows: is_right(module, rows[::-1]),  # type: ignore[misc]
            lambda rows=rows: is_right(module, rows[6:] + rows[:6]),  # type: ignore[misc]
        )
        assert answers == [True] * 3
    stats = modcache.stats()
    assert stats["misses"] == 120


class Outer(nn.Module):
    """A batch inside a batch, of the same keys or of others."""

    def __init__(self, inner: Any, shift: int) -> None:
        super().__init__()
        self.inner = inner
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [(int(row) + self.shift) % 40 for row in x[:, 0]]
        inner = modcache.lookup_or_run(self.inner, batch(rows), keys_of(rows), scope="inner")
        assert torch.equal(inner, batch(rows) * 3)
        return x * 3


@pytest.mark.parametrize("face", FACES)
def test_a_batch_inside_a_module_inside_a_batch(face: str) -> None:
    inner = in_form(Busy(), face)
    works = []
    for index in range(6):
        rows = [(index * 5 + step) % 40 for step in range(15)]
        outer = Outer(inner, shift=index * 7)
        order = rows if index % 2 else rows[::-1]
        works.append(lambda outer=outer, order=order: is_right(outer, order, scope="outer"))
    assert at_once(*works) == [True] * 6


class RaisesOnce(Busy):
    """The first run fails, while others wait for its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = threading.Semaphore(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        if self.fails.acquire(blocking=False):
            time.sleep(0.1)
            raise ArithmeticError("too hard")
        return result


def test_when_one_batch_raises_the_others_go_on() -> None:
    module = RaisesOnce()
    rows = list(range(20))
    works = [
        lambda shift=shift: is_right(module, rows[shift:] + rows[:shift], scope="s")
        for shift in range(0, 20, 4)
    ]
    answers = at_once(*works)
    assert answers.count(True) == 4
    (raised,) = [answer for answer in answers if answer is not True]
    assert str(raised) == "too hard"
    assert is_right(module, rows, scope="s")


def test_a_key_that_failed_can_be_run_again() -> None:
    modcache.configure(strict=True)
    x = torch.ones(2, 2)
    kept = at_once(lambda: modcache.lookup_or_run(nn.Dropout(), x, "k", scope="s"))
    assert isinstance(kept[0], RuntimeError)
    (result,) = at_once(lambda: modcache.lookup_or_run(nn.ReLU(), x, "k", scope="s"))
    assert torch.equal(result, x)


class Waits(Busy):
    """Runs until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.has_begun.set()
        self.may_end.wait(PATIENCE_S)
        return super().forward(x)


def test_a_forked_child_waits_for_no_run_of_its_parent() -> None:
    rows = list(range(5))
    waits = Waits()
    thread = threading.Thread(target=lambda: is_right(waits, rows, scope="s"))
    thread.start()
    waits.has_begun.wait()
    child = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(0 if is_right(Busy(), rows, scope="s") else 2)
    )
    child.start()
    child.join(PATIENCE_S / 2)
    waits.may_end.set()
    thread.join()
    child.kill()
    assert child.exitcode == 0


# --- Workers, and their end -------------------------------------------------------------


class Loads(torch.utils.data.Dataset[torch.Tensor]):
    """Each item is a batch that overlaps with its neighbours."""

    def __init__(self, face: str) -> None:
        self.module = in_form(Busy(), face)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        rows = [(index * 4 + step) % 64 for step in range(12)]
        return modcache.lookup_or_run(self.module, batch(rows), keys_of(rows))


@pytest.mark.parametrize("face", FACES)
def test_forked_workers_fill_with_batches(face: str) -> None:
    dataset = Loads(face)
    expected = [dataset[0]]  # the parent has used the cache before it forks
    modcache.flush()
    expected += [
        batch([(index * 4 + step) % 64 for step in range(12)]) * 3 for index in range(1, 16)
    ]
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        for item, wanted in zip(loader, expected, strict=True):
            assert torch.equal(item, wanted)
    modcache.reset_stats()
    for index in range(16):
        assert torch.equal(dataset[index], expected[index])
    stats = modcache.stats()
    assert (stats["misses"], stats["corrupt"], stats["errors"]) == (0, 0, 0)


WIDE = 1024
PER_BATCH = 32


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(-1, 1024) * 2.0


def wide(first: int) -> tuple[torch.Tensor, list[str]]:
    rows = range(first, first + PER_BATCH)
    return torch.tensor([[float(row)] for row in rows]), [str(row) for row in rows]


def fill_for_ever(first: int) -> None:
    """Fills with overlapping batches; tells up to where a flush has confirmed it."""
    module = torch.jit.script(Wide())
    tell("at work")
    while True:
        for _ in range(4):
            modcache.lookup_or_run(module, *wide(first), scope="crash")
            first += PER_BATCH // 2
        modcache.flush()
        tell(first)


def read_until(stop_file: str, last: int) -> tuple[int, dict[str, int]]:
    """Reads batches while another process writes them and dies."""
    module = torch.jit.script(Wide())
    wrong = 0
    chance = random.Random(last)
    tell("at work")
    while not Path(stop_file).exists():
        x, keys = wide(chance.randrange(last))
        value = modcache.lookup_or_run(module, x, keys, scope="crash")
        wrong += not torch.equal(value, x.expand(-1, WIDE) * 2)
    return wrong, modcache.stats()


def test_a_filling_process_is_killed_while_others_read(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    chance = random.Random(5)
    stop_file = tmp_path / "stop"
    readers = [
        processes.start(read_until, str(stop_file), 4000, env={"MODCACHE_MODE": mode})
        for mode in ("read", "on")
    ]
    for reader in readers:
        reader.receive()
    confirmed: list[tuple[int, int]] = []
    first = 0
    for _ in range(8):
        child = processes.start(fill_for_ever, first)
        child.receive()
        child.has_news(5.0)
        time.sleep(chance.uniform(0.0, 0.1))
        os.kill(child.process.pid or 0, 9)
        child.kill()
        last = child.last_news(first)
        if last > first:
            confirmed.append((first, last))
        first = last + 200  # beyond what was begun and not confirmed
    stop_file.touch()
    for reader in readers:
        outcome = reader.wait()
        wrong, stats = outcome.value
        assert (wrong, stats["corrupt"], stats["errors"]) == (0, 0, 0)
        assert outcome.log_lines == []
    assert confirmed, "no flush was confirmed: the test proved nothing"
    modcache.set_mode("read")
    for begin, end in confirmed:
        rows = list(range(begin, end))
        x = torch.tensor([[float(row)] for row in rows])
        modcache.reset_stats()
        value = modcache.lookup_or_run(Wide(), x, [str(row) for row in rows], scope="crash")
        assert torch.equal(value, x.expand(-1, WIDE) * 2)
        stats = modcache.stats()
        assert (stats["misses"], stats["corrupt"], stats["errors"]) == (0, 0, 0)
