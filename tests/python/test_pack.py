# SPDX-License-Identifier: Apache-2.0
"""A pack that the program made of a directory, in the place of a directory: every call is a hit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import Encoder, frozen
from processes import PROGRAM, ProcessRunner

X = torch.linspace(-1, 1, 8).reshape(2, 4)
WHOLE = 5


def outputs() -> list[Any]:
    """What the scripted encoder gives for keys of whole values, for rows, and for ids."""
    torch.manual_seed(0)
    module = torch.jit.script(frozen(Encoder()))
    look = torch.ops.cache.lookup_or_run
    values = [look(module, X * i, str(i)) for i in range(WHOLE)]
    values += [look(module, X, ["a", "b"]), look(module, X, torch.tensor([3, 4]))]
    assert all(value.dtype == torch.float32 for value in values)
    return [value.tolist() for value in values]


def store() -> list[Any]:
    values = outputs()
    modcache.flush()
    return values


def read(pack: str) -> tuple[list[Any], dict[str, int], dict[str, str]]:
    modcache.configure(dir=pack)
    values = outputs()
    modcache.flush()
    return values, modcache.stats(), modcache.settings()


@pytest.fixture
def pack(processes: ProcessRunner, cache_dir: Path, tmp_path: Path) -> tuple[Path, list[Any]]:
    """A pack in a folder of its own, and what went into it; who stored that has ended."""
    assert PROGRAM.exists(), "first: ./tests/run --only build"
    stored = processes.run(store)
    assert stored.exit_code == 0
    path = tmp_path / "shipped" / "encoder.pack"
    path.parent.mkdir()
    subprocess.run([PROGRAM, "pack", cache_dir, path], check=True, timeout=120)
    return path, stored.value


def test_a_model_finds_all_of_it_in_another_process(
    processes: ProcessRunner, pack: tuple[Path, list[Any]]
) -> None:
    path, stored = pack
    before = path.read_bytes()
    outcome = processes.run(read, str(path))
    values, stats, settings = outcome.value
    assert values == stored
    assert settings["dir"] == str(path)
    assert stats["hits_disk"] == WHOLE + 4
    for counter in ("misses", "run_us", "stored", "errors", "corrupt"):
        assert stats[counter] == 0, counter
    assert outcome.log_lines == []
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_what_it_lacks_runs_and_is_kept_nowhere(
    processes: ProcessRunner, pack: tuple[Path, list[Any]]
) -> None:
    path, stored = pack
    subprocess.run([PROGRAM, "pack", path.parents[1] / "cache", path, "--prefix", "1"], check=True)
    before = path.read_bytes()
    for _ in range(2):
        values, stats, _ = processes.run(read, str(path)).value
        assert values == stored
        assert (stats["hits_disk"], stats["misses"]) == (1, WHOLE + 3)
        assert stats["errors"] == 0
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before
