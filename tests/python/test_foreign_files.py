# SPDX-License-Identifier: Apache-2.0
"""Something else in the place of each file of a directory: outputs stay right, nobody waits."""

from __future__ import annotations

import time
from pathlib import Path

import modcache
import pytest
import torch
from models import frozen
from processes import ProcessRunner
from strangers import Stranger, cases, path_of

LONGEST_S = 30  # allows for a busy machine; a read from a pipe would never return


def use() -> tuple[bool, float, int]:
    """Whether the output was right, the longest wait in seconds, and the errors counted."""
    torch.manual_seed(0)
    module = frozen(torch.nn.Linear(4, 4))
    x = torch.ones(2, 4)
    expected = module(x)
    longest = 0.0
    is_right = True
    for key in ("old", "new", "old"):
        started = time.perf_counter()
        is_right = is_right and torch.equal(modcache.lookup_or_run(module, x, key), expected)
        longest = max(longest, time.perf_counter() - started)
    started = time.perf_counter()
    modcache.flush()
    return is_right, max(longest, time.perf_counter() - started), modcache.stats()["errors"]


def store_one() -> None:
    torch.manual_seed(0)
    modcache.lookup_or_run(frozen(torch.nn.Linear(4, 4)), torch.ones(2, 4), "old")
    modcache.flush()


@pytest.mark.parametrize(("file", "thing"), cases())
def test_a_foreign_file(
    cache_dir: Path, tmp_path: Path, processes: ProcessRunner, file: str, thing: str
) -> None:
    processes.run(store_one)
    stranger = Stranger(tmp_path / "outside")
    stranger.put(thing, path_of(cache_dir, file))
    outcome = processes.run(use)
    is_right, longest, errors = outcome.value
    assert is_right
    assert longest < LONGEST_S
    assert stranger.is_untouched
    assert errors >= 1
    assert sum(file in line or "segments/" in line for line in outcome.log_lines) >= 1


@pytest.mark.parametrize("thing", ["pipe", "device", "socket", "dangling-link", "link"])
def test_a_foreign_thing_in_the_place_of_the_directory(
    cache_dir: Path, tmp_path: Path, processes: ProcessRunner, thing: str
) -> None:
    stranger = Stranger(tmp_path / "outside")
    stranger.put(thing, cache_dir)
    is_right, longest, errors = processes.run(use).value
    assert is_right
    assert longest < LONGEST_S
    assert stranger.is_untouched
    assert errors >= 1


def test_the_directory_may_be_reached_by_a_link(
    cache_dir: Path, tmp_path: Path, processes: ProcessRunner
) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache_dir.symlink_to(tmp_path / "elsewhere")
    processes.run(store_one)
    assert (tmp_path / "elsewhere" / "control").is_file()
    assert processes.run(use).value[0::2] == (True, 0)
