# SPDX-License-Identifier: Apache-2.0
"""Counters, contains and clear."""

from __future__ import annotations

import time
from typing import Any

import modcache
import pytest
import torch
from models import Encoder, frozen
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
COUNTERS = {
    "hits_memory", "hits_disk", "hits_remote", "misses", "stored", "bypassed_off", "bypassed_grad",
    "bypassed_impure", "bypassed_type", "key_conflicts", "verify_differences", "evicted",
    "not_kept",
    "corrupt", "errors", "entries_memory", "bytes_memory", "entries_disk", "bytes_disk", "run_us",
    "saved_us", "bypassed_verify", "verified",
}  # fmt: skip


def test_all_counters_are_there_and_start_at_zero() -> None:
    stats = modcache.stats()
    assert set(stats) >= COUNTERS
    sizes = ("bytes_memory", "bytes_disk")  # an empty directory takes some
    assert {name: stats[name] for name in COUNTERS if stats[name] and name not in sizes} == {}


def test_hits_misses_and_tiers(reopen: Any, counted: Any) -> None:
    module = torch.jit.script(frozen(Encoder()))
    for key in ("a", "b", "a", "a"):
        modcache.lookup_or_run(module, X, key)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}
    reopen()
    for key in ("a", "a"):
        modcache.lookup_or_run(module, X, key)
    assert counted() == {"hits_disk": 1, "hits_memory": 1}
    stats = modcache.stats()
    assert stats["entries_disk"] == 2
    assert stats["entries_memory"] == 1
    assert stats["bytes_disk"] >= 2 * X.nbytes
    assert stats["bytes_memory"] >= X.nbytes


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = (x @ x).tanh()
        return x


def test_times_are_microseconds_and_hits_save_what_their_run_took(reopen: Any) -> None:
    x = torch.eye(100)
    started = time.perf_counter()
    modcache.lookup_or_run(Slow(), x, "k")
    spent_us = (time.perf_counter() - started) * 1e6
    run_us = modcache.stats()["run_us"]
    assert 0 < run_us <= spent_us
    assert modcache.stats()["saved_us"] == 0
    modcache.lookup_or_run(Slow(), x, "k")
    assert modcache.stats()["saved_us"] == run_us
    reopen()
    modcache.lookup_or_run(Slow(), x, "k")
    assert modcache.stats()["saved_us"] == 2 * run_us


def test_reset_leaves_entries_and_bytes_alone() -> None:
    modcache.lookup_or_run(nn.ReLU(), X, "k")
    modcache.flush()
    before = modcache.stats()
    modcache.reset_stats()
    after = modcache.stats()
    for name in COUNTERS:
        kept = name.startswith(("entries", "bytes"))
        assert after[name] == (before[name] if kept else 0)
    assert after["entries_disk"] == 1


def test_a_module_that_raises_counts_nothing_as_stored(counted: Any) -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("no such row")

    for _ in range(2):
        with pytest.raises(KeyError, match="no such row"):
            modcache.lookup_or_run(Raises(), X, "k")
    assert "stored" not in counted()
    assert modcache.stats()["errors"] == 0


# --- contains and clear -----------------------------------------------------------------


def fill(scope: str, *keys: str) -> None:
    for key in keys:
        modcache.lookup_or_run(nn.ReLU(), X, key, scope=scope)


def there(scope: str, *keys: str) -> list[bool]:
    return [modcache.contains(scope, key) for key in keys]


def test_contains_tells_and_counts_nothing(reopen: Any, counted: Any) -> None:
    fill("s", "a")
    counted()
    assert there("s", "a", "b") == [True, False]
    assert not modcache.contains("t", "a")
    reopen()
    assert there("s", "a", "b") == [True, False]
    assert counted() == {}


def test_contains_takes_a_fingerprint() -> None:
    for module in (frozen(Encoder()), torch.jit.script(frozen(Encoder()))):
        modcache.lookup_or_run(module, X, "k")
        assert modcache.contains(modcache.fingerprint(module), "k")


@pytest.mark.parametrize("flushed", [False, True])
def test_clear_removes_all_or_a_scope_or_a_prefix(flushed: bool) -> None:
    def refill() -> None:
        fill("s", "train/1", "train/2", "test/1")
        fill("t", "train/1")
        if flushed:
            modcache.flush()

    refill()
    assert modcache.clear("s", prefix="train/") == 2
    assert there("s", "train/1", "train/2", "test/1") == [False, False, True]
    assert there("t", "train/1") == [True]
    assert modcache.clear("s") == 1
    assert there("t", "train/1") == [True]
    assert modcache.clear() == 1
    assert there("t", "train/1") == [False]
    assert modcache.clear() == 0
    refill()
    assert modcache.clear(prefix="train/") == 3
    modcache.flush()
    assert modcache.stats()["entries_disk"] == 1


def test_clearing_memory_keeps_the_disk(counted: Any) -> None:
    fill("s", "a")
    modcache.flush()
    modcache.clear(tier="memory")
    assert modcache.stats()["entries_memory"] == 0
    counted()
    fill("s", "a")
    assert counted() == {"hits_disk": 1}


def test_a_cleared_key_is_run_again(counted: Any) -> None:
    fill("s", "a")
    modcache.clear("s")
    counted()
    fill("s", "a")
    assert counted() == {"misses": 1, "stored": 1}


def test_clear_of_a_tier_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="memory"):
        modcache.clear(tier="attic")
