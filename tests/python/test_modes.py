# SPDX-License-Identifier: Apache-2.0
"""Modes: what each forbids, who sees it, and that off touches no file."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import FACES_WITH_ATTRIBUTES, Encoder, frozen, in_form
from processes import ProcessRunner, python_environment
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.mark.parametrize("face", FACES_WITH_ATTRIBUTES)
def test_what_each_mode_reads_writes_and_runs(face: str, counted: Any) -> None:
    module = in_form(frozen(Encoder()), face)
    modcache.set_mode("off")
    modcache.lookup_or_run(module, X, "a")
    assert counted() == {"bypassed_off": 1}
    modcache.set_mode("read")
    modcache.lookup_or_run(module, X, "a")
    modcache.lookup_or_run(module, X, "a")
    assert counted() == {"misses": 2}
    modcache.set_mode("on")
    modcache.lookup_or_run(module, X, "a")
    assert counted() == {"misses": 1, "stored": 1}
    modcache.set_mode("read")
    modcache.lookup_or_run(module, X, "a")
    assert counted() == {"hits_memory": 1}
    modcache.set_mode("off")
    assert torch.equal(modcache.lookup_or_run(module, X, "a"), module(X))
    assert counted() == {"bypassed_off": 1}


def test_the_mode_shows() -> None:
    for mode in ("off", "read", "on", "refresh", "verify"):
        modcache.set_mode(mode)
        assert modcache.mode() == mode
        assert modcache.settings()["mode"] == mode


def test_configure_sets_the_mode_too() -> None:
    modcache.configure(mode="read")
    assert modcache.mode() == "read"


def test_other_threads_see_it_at_their_next_call() -> None:
    seen = []
    modcache.set_mode("read")
    for mode in ("off", "on"):
        modcache.set_mode(mode)
        thread = threading.Thread(target=lambda: seen.append(modcache.mode()))
        thread.start()
        thread.join()
    assert seen == ["off", "on"]


def test_read_stores_nothing_for_later_processes(cache_dir: Path) -> None:
    modcache.set_mode("read")
    modcache.lookup_or_run(nn.ReLU(), X, "k")
    modcache.flush()
    assert not cache_dir.exists()


def mode_and_stats(x: torch.Tensor) -> tuple[str, dict[str, int]]:
    modcache.lookup_or_run(torch.jit.script(nn.ReLU()), x, "k")
    return modcache.mode(), modcache.stats()


@pytest.mark.parametrize(
    ("mode", "counter"), [("off", "bypassed_off"), ("read", "misses"), ("on", "stored")]
)
def test_the_environment_sets_where_it_starts(
    mode: str, counter: str, processes: ProcessRunner
) -> None:
    found, stats = processes.run(mode_and_stats, X, env={"MODCACHE_MODE": mode}).value
    assert found == mode
    assert stats[counter] == 1
    assert (stats["stored"] == 1) == (mode == "on")


def test_a_bad_value_in_the_environment_is_warned_about_once(processes: ProcessRunner) -> None:
    outcome = processes.run(mode_and_stats, X, env={"MODCACHE_MODE": "ON!"})
    assert outcome.value[0] == "on"
    (line,) = outcome.log_lines
    for part in ("MODCACHE_MODE", "ON!", "off", "read", "on"):
        assert part in line


@pytest.mark.parametrize("bad", ["", "ON", "refreshing", "verify ", None, 1])
def test_a_mode_that_is_none_is_an_error_that_lists_them(bad: Any) -> None:
    modcache.set_mode("read")
    with pytest.raises((ValueError, TypeError)) as caught:
        modcache.set_mode(bad)
    assert "off" in str(caught.value)
    assert modcache.mode() == "read"


TRACED_PROGRAM = """
import sys, torch, modcache
from models import Encoder, frozen
module = frozen(Encoder())
scripted = torch.jit.script(module)
x = torch.ones(2, 4)
print("MARK", flush=True)
for m in (module, scripted):
    modcache.lookup_or_run(m, x, "k")
    modcache.contains("s", "k")
torch.ops.cache.lookup("s", "k")
torch.ops.cache.store("s", "k", x)
modcache.stats(); modcache.flush(); modcache.mode()
"""


@pytest.mark.parametrize("mode", ["off", "on"])
def test_off_opens_nothing_in_the_directory(mode: str, tmp_path: Path) -> None:
    directory = tmp_path / "watched-cache"
    trace = tmp_path / "trace"
    calls = "%file"  # every system call that takes a file name
    subprocess.run(
        [
            "strace",
            "-f",
            "-qq",
            "-o",
            str(trace),
            "-e",
            f"trace={calls}",
            sys.executable,
            "-c",
            TRACED_PROGRAM,
        ],
        env=python_environment(
            MODCACHE_DIR=str(directory), MODCACHE_MODE=mode, OMP_NUM_THREADS="1"
        ),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    touched = [line for line in trace.read_text().splitlines() if directory.name in line]
    assert bool(touched) == (mode == "on"), touched[:3]
    assert directory.exists() == (mode == "on")
