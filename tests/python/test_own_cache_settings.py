# SPDX-License-Identifier: Apache-2.0
"""What a Cache of its own has in common with the default one, and with torch's profiler."""

from __future__ import annotations

import os
from pathlib import Path

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def keep_in_own(own_dir: str) -> tuple[str, int]:
    del os.environ["MODCACHE_DIR"]
    with torch.no_grad():
        modcache.lookup_or_run(nn.ReLU(), X, "k")
        own = modcache.Cache(dir=own_dir)
        own.lookup_or_run(nn.ReLU(), X, "k")
    own.flush()
    with pytest.raises(ValueError, match="with disk="):
        modcache.Cache(memory="1GB")
    return own.settings()["disk"], own.stats()["entries_disk"]


def test_a_cache_has_its_directory_whatever_the_default_one_is_set_to(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    default = {"MODCACHE_DISK": "20GB", "HOME": str(tmp_path)}
    outcome = processes.run(keep_in_own, str(tmp_path / "own"), env=default)
    assert outcome.value == ("100000000000", 1)
    assert outcome.log_lines == []


def keep_in_both(one: str, other: str) -> int:
    own = modcache.Cache(dir=one, disk="5GB")
    with torch.no_grad():
        own.lookup_or_run(nn.ReLU(), X, "k")
        modcache.configure(dir=other)
        modcache.lookup_or_run(nn.ReLU(), X, "k")
    modcache.flush()
    return modcache.stats()["entries_disk"]


def test_the_default_cache_is_not_set_up_by_another(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    outcome = processes.run(keep_in_both, one, other, env={"MODCACHE_DIR": one})
    assert outcome.value == 1
    assert outcome.log_lines == []


def test_the_profiler_may_end_and_begin_inside_of_a_block() -> None:
    own = modcache.Cache(memory="1MB", disk=0)
    scripted = torch.jit.script(nn.ReLU())
    schedule = torch.profiler.schedule(wait=0, warmup=0, active=1)
    with torch.no_grad(), torch.profiler.profile(schedule=schedule) as profile, own:
        for key in ("a", "b", "c"):
            torch.ops.cache.lookup_or_run(scripted, X, key)
            profile.step()
    assert own.stats()["misses"] == 3
    with torch.no_grad():
        torch.ops.cache.lookup_or_run(scripted, X, "a")
    assert own.stats()["misses"] == 3


def test_a_block_may_end_while_the_profiler_is_on() -> None:
    own = modcache.Cache(memory="1MB", disk=0)

    class Forks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ReLU()

        def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
            later = torch.jit.fork(self.called, x, key)
            return torch.jit.wait(later)

        def called(self, x: torch.Tensor, key: str) -> torch.Tensor:
            return torch.ops.cache.lookup_or_run(self.encoder, x, key)

    forks = torch.jit.script(Forks())
    profile = torch.profiler.profile()
    with torch.no_grad():
        with own:
            profile.start()
            forks(X, "a")
        assert own.stats()["misses"] == 1
        forks(X, "b")
        profile.stop()
        forks(X, "c")
    assert own.stats()["misses"] == 1, "they belong to the default cache"
