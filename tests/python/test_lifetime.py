# SPDX-License-Identifier: Apache-2.0
"""A module that nobody holds any more is freed, whatever was asked of the cache for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from modcache._identity import module_state
from models import frozen, reloaded
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Holder(nn.Module):
    """An eager module with a scripted one in it."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "one key": lambda m: modcache.lookup_or_run(m, X, "k"),
    "rows": lambda m: modcache.lookup_or_run(m, X, ["a", "b"]),
    "ids": lambda m: modcache.lookup_or_run_any(m, X, torch.arange(2)),
    "fingerprint": modcache.fingerprint,
    "refresh": modcache.refresh_fingerprint,
    "freeze": lambda m: modcache.freeze(m)(X),
    "in an eager module": lambda m: modcache.lookup_or_run(Holder(m), X, "k"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_loaded_module_is_freed(question: str) -> None:
    module = reloaded(torch.jit.script(frozen(nn.Linear(4, 4))))
    weight = weakref.ref(module.weight)
    for _ in range(2):
        QUESTIONS[question](module)
    assert weight() is not None
    del module
    gc.collect()
    assert weight() is None


SPAWNING = """
import torch, modcache

def work(rank, module):
    module(torch.ones(2, 8), ids=torch.arange(2))

if __name__ == "__main__":
    module = modcache.cached(torch.nn.Linear(8, 4), key="ids", freeze=True)
    torch.multiprocessing.spawn(work, (module,), nprocs=2)
"""


def test_spawned_workers_end_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    environment = {**os.environ, "MODCACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_called_when_a_module_dies_needs_no_globals() -> None:
    """As the interpreter leaves them at its exit: None."""
    module = frozen(nn.Linear(4, 2))
    modcache.lookup_or_run(module, X, "k")
    reference, _ = module_state.states[id(module)]
    names = types.FunctionType(type(reference.__callback__).__call__.__code__, {})
    names(reference.__callback__, reference)
    assert id(module) not in module_state.states
