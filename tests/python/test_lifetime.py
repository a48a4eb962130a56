# SPDX-License-Identifier: Apache-2.0
"""A module that nobody holds any more is freed, whatever was asked of the cache for it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
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
