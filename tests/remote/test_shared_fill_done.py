# SPDX-License-Identifier: Apache-2.0
"""fill(share=True): a batch of which nothing was stored is not done, whatever was run."""

from __future__ import annotations

from pathlib import Path

import modcache
import pytest
import torch
from machines import Machines, slow_module
from modcache._fill import shared_batches
from redis_servers import RedisServer
from torch import nn

BATCHES = [(torch.full((4, 8), float(i)), [f"{i}-{k}" for k in range(4)]) for i in range(5)]


def fill(module: nn.Module) -> modcache.FillSummary:
    return modcache.fill(module, BATCHES, key=1, scope="s", share=True, progress=False)


def test_results_that_were_not_stored_are_to_be_filled_again(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_batches, "_PAUSE_BEFORE_REPEAT_S", 0.05)
    with RedisServer(tmp_path / "r") as redis:
        machines.become("here", redis.address, min_run_us=10_000_000)
        with pytest.warns(UserWarning, match="not cached|did not take"):
            assert fill(slow_module(run_s=0.001)).stored == 0
        machines.become("here", redis.address, min_run_us=0)
        assert fill(slow_module(run_s=0.001)).stored == 20
        machines.become("later", redis.address)
        assert fill(slow_module(run_s=0.001)).rows == 0, "all of it is done"
