# SPDX-License-Identifier: Apache-2.0
"""A script is switched off from outside without a change to it, its fills included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import python_environment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS = torch.arange(20.0).reshape(10, 2)
IDS = torch.arange(10)


@pytest.fixture
def encoder() -> nn.Module:
    return nn.Linear(2, 3).requires_grad_(False).eval()


def loader_of() -> DataLoader[Any]:
    return DataLoader(TensorDataset(ROWS, IDS), batch_size=4)


@pytest.mark.parametrize("mode", ["off", "read", "verify"])
def test_a_mode_that_stores_nothing_skips_the_fill(
    encoder: nn.Module, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    with modcache.mode(mode):
        done = modcache.fill(encoder, loader_of(), key=1)
    assert (done.rows, done.is_complete) == (0, True)
    assert done.skipped.startswith(f"the mode of this thread is '{mode}'")
    assert str(done) == f"nothing was run, because nothing would be stored: {done.skipped}"
    assert caplog.messages == [f"modcache.fill: {done}"]
    with modcache.mode("refresh"):
        assert modcache.fill(encoder, loader_of(), key=1).runs == 10


def test_a_mode_that_is_set_during_a_fill_ends_it(
    encoder: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    def batches() -> Any:
        for number, batch in enumerate(loader_of()):
            if number == 2:
                modcache.set_mode("off")
            yield batch

    done = modcache.fill(encoder, batches(), key=1)
    modcache.set_mode("on")
    assert (done.rows, done.stored) == (8, 8)
    assert "ended early: the mode of this process is 'off'" in str(done)
    assert caplog.messages == [f"modcache.fill: {done}"]
    assert modcache.fill(encoder, loader_of(), key=1).hits == 8


def test_a_script_is_switched_off_by_the_environment(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=python_environment(MODCACHE_MODE="off", MODCACHE_DIR=str(directory)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["0", "0", "bypassed", "2", "0"]
    assert "MODCACHE_MODE" in ended.stderr
    assert not directory.exists()


_SCRIPT = """
import modcache, torch
encoder = torch.nn.Linear(2, 2).requires_grad_(False).eval()
cached = modcache.cached(torch.nn.Linear(2, 2), key="ids", freeze=True)
x, ids = torch.ones(2, 2), torch.arange(2)
done = modcache.fill(encoder, [(x, ids)], key=1)
print(done.rows, modcache.prefetch(encoder, ids))
print(modcache.explain(encoder, x, ids).status)
modcache.place(encoder, "host")
for batch in modcache.Prefetcher([x, x], encode=lambda x: cached(x, ids=ids)):
    assert batch.shape == (2, 2)
with modcache.keys(ids):
    modcache.cached(torch.nn.Linear(2, 2), freeze=True)(x)
dataset = modcache.CachedDataset([1.0, 2.0], scope="d")
stream = modcache.CachedIterableDataset([{"__key__": "a"}], len, scope="s")
print(len(list(dataset)), modcache.clear())
list(stream), modcache.KeyedDataset(dataset, "train")[0], modcache.contains("d", 0)
modcache.freeze(torch.jit.script(encoder))
modcache.flush()
"""
