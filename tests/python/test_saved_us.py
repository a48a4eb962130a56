# SPDX-License-Identifier: Apache-2.0
"""What runs took and hits saved; `min_run_us`: what is cheaper to run than this is not kept."""

from __future__ import annotations

import time
from typing import Any

import modcache
import pytest
import torch
from abandoned_runs import abandoned_run
from models import in_form
from processes import ProcessRunner
from torch import nn

X = torch.eye(8)
KEYS = [f"row-{row}" for row in range(8)]
SLEEP_US = 100_000
SLEEPY_US = 90_000  # a run that sleeps takes longer, and an eighth of it does not


class Sleeps(nn.Module):
    """Takes its time, however many rows there are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP_US / 1e6)
        return x + 1


class Works(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(64, 64) / 64
        for _ in range(50):
            y = torch.mm(y, y)
        return x + y.mean()


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x + 2


def times() -> tuple[int, int]:
    stats = modcache.stats()
    return stats["run_us"], stats["saved_us"]


@pytest.fixture(params=["eager", "scripted", "traced"])
def works(request: Any) -> Any:
    return in_form(Works(), request.param, X)


def test_a_run_takes_at_least_what_it_slept_and_at_most_what_the_call_took() -> None:
    for number, key in enumerate(("k", KEYS)):
        modcache.reset_stats()
        started = time.perf_counter()
        modcache.lookup_or_run(Sleeps(), X, key, scope=str(number))
        spent_us = (time.perf_counter() - started) * 1e6
        run_us, saved_us = times()
        assert SLEEP_US <= run_us <= spent_us
        assert saved_us == 0


def test_a_hit_saves_what_its_run_took(works: Any, reopen: Any) -> None:
    modcache.lookup_or_run(works, X, "k")
    run_us, _ = times()
    assert run_us > 0
    for hits in range(1, 5):
        modcache.lookup_or_run(works, X, "k")
        assert times() == (run_us, hits * run_us)
        if hits % 2:
            reopen()


def test_a_row_saves_its_share_of_the_batch(works: Any, reopen: Any) -> None:
    modcache.lookup_or_run(works, X, KEYS)
    run_us, _ = times()
    share_us = run_us // len(KEYS)
    assert share_us > 0
    modcache.lookup_or_run(works, X, KEYS)
    assert times() == (run_us, 8 * share_us)
    modcache.lookup_or_run(works, X[:3], KEYS[:3])
    assert times() == (run_us, 11 * share_us)
    reopen()
    modcache.lookup_or_run(works, X[:3], KEYS[:3])
    assert times() == (run_us, 14 * share_us)


def test_a_partly_missing_batch_takes_what_its_missing_rows_took(works: Any) -> None:
    modcache.lookup_or_run(works, X[:6], KEYS[:6])
    first_us, _ = times()
    modcache.lookup_or_run(works, X, KEYS)
    run_us, saved_us = times()
    assert saved_us == 6 * (first_us // 6)
    assert run_us > first_us
    modcache.lookup_or_run(works, X[6:], KEYS[6:])
    assert times() == (run_us, saved_us + 2 * ((run_us - first_us) // 2))


def test_each_run_of_a_batch_counts_for_its_own_rows() -> None:
    with abandoned_run(lambda: modcache.lookup_or_run(Sleeps(), X[6:], KEYS[6:], scope="s")):
        modcache.lookup_or_run(Sleeps(), X, KEYS, scope="s")
    run_us, _ = times()
    assert run_us >= 2 * SLEEP_US
    modcache.lookup_or_run(Sleeps(), X[6:], KEYS[6:], scope="s")  # the second run had these two
    _, saved_us = times()
    assert SLEEP_US - 2 <= saved_us <= run_us - SLEEP_US
    modcache.reset_stats()
    modcache.lookup_or_run(Sleeps(), X, KEYS, scope="s")
    assert run_us - len(KEYS) < times()[1] <= run_us


def saved_in_another_process() -> int:
    modcache.lookup_or_run(Works(), X, KEYS, scope="s")
    modcache.lookup_or_run(Works(), X, "k", scope="s")
    return modcache.stats()["saved_us"]


def test_other_processes_know_what_a_run_took(processes: ProcessRunner) -> None:
    modcache.lookup_or_run(Works(), X, KEYS, scope="s")
    rows_us, _ = times()
    modcache.lookup_or_run(Works(), X, "k", scope="s")
    both_us, _ = times()
    modcache.flush()
    saved_us = processes.run(saved_in_another_process).value
    assert saved_us == 8 * (rows_us // 8) + both_us - rows_us


# --- min_run_us ---------------------------------------------------------------------------

NEVER_US = 1_000_000_000


@pytest.mark.parametrize("key", ["k", KEYS], ids=["one key", "per row"])
@pytest.mark.parametrize("module", [Works(), Pair()], ids=["tensor", "structure"])
@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_what_is_quick_is_not_kept(module: nn.Module, face: str, key: Any, counted: Any) -> None:
    module = in_form(module, face)
    modcache.configure(min_run_us=NEVER_US)
    rows = 1 if key == "k" else len(KEYS)
    for _ in range(2):
        modcache.lookup_or_run(module, X, key)
    assert counted() == {"misses": 2 * rows}
    assert modcache.stats()["entries_memory"] == modcache.stats()["entries_disk"] == 0
    assert times()[0] > 0
    modcache.configure(min_run_us=0)
    for _ in range(2):
        modcache.lookup_or_run(module, X, key)
    assert counted() == {"misses": rows, "stored": rows, "hits_memory": rows}


def test_what_takes_longer_is_kept(counted: Any) -> None:
    modcache.configure(min_run_us=SLEEPY_US)
    for _ in range(2):
        modcache.lookup_or_run(Sleeps(), X, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_of_a_batch_each_row_counts_with_its_share(counted: Any) -> None:
    modcache.configure(min_run_us=SLEEPY_US)
    modcache.lookup_or_run(Sleeps(), X, KEYS)
    assert counted() == {"misses": 8}
    modcache.lookup_or_run(Sleeps(), X[:1], KEYS[:1])
    assert counted() == {"misses": 1, "stored": 1}
    modcache.configure(min_run_us=SLEEPY_US // 8)
    modcache.lookup_or_run(Sleeps(), X, KEYS)
    assert counted() == {"hits_memory": 1, "misses": 7, "stored": 7}


def test_what_is_there_is_found_however_quick_it_was(works: Any, counted: Any, reopen: Any) -> None:
    for key in ("k", KEYS):
        modcache.configure(min_run_us=0)
        modcache.lookup_or_run(works, X, key)
        modcache.configure(min_run_us=NEVER_US)
        counted()
        for tier in ("hits_memory", "hits_disk"):
            modcache.lookup_or_run(works, X, key)
            assert set(counted()) == {tier}
            reopen()


@pytest.mark.parametrize("key", ["k", KEYS], ids=["one key", "per row"])
def test_what_replaces_an_entry_is_kept_however_quick_it_was(
    key: Any, counted: Any, reopen: Any
) -> None:
    rows = 1 if key == "k" else len(KEYS)
    wider = torch.zeros(8, 9)
    modcache.lookup_or_run(Works(), X, key)
    modcache.configure(min_run_us=NEVER_US)
    for forget in (lambda: None, reopen):
        forget()
        counted()
        modcache.lookup_or_run(Works(), wider, key)
        assert counted()["stored"] == rows
        wider = torch.zeros(8, wider.shape[1] + 1)
    with modcache.mode("refresh"):
        modcache.lookup_or_run(Works(), wider, key)
        assert counted() == {"misses": rows, "stored": rows}
    modcache.lookup_or_run(Works(), wider, key)
    assert counted() == {"hits_memory": rows}
