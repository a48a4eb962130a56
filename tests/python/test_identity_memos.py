# SPDX-License-Identifier: Apache-2.0
"""Functions under functools.lru_cache, whose memory may be out of date."""

from __future__ import annotations

import functools
from typing import Any

import modcache
import pytest
import torch
from modcache._identity.memos import _is_method
from modcache._identity.module_state import state_of
from torch import nn

X = torch.ones(3)


def looked_up(module: nn.Module, key: str = "k") -> torch.Tensor:
    result: torch.Tensor = modcache.lookup_or_run(module, X, key)
    return result


VALUES = {"scale": 2.0}


@functools.lru_cache
def scale() -> float:
    return VALUES["scale"]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * scale()


def test_an_outdated_memo_is_not_stored_under_the_new_value(
    monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    scale.cache_clear()
    module = Scaled()
    looked_up(module)
    monkeypatch.setitem(VALUES, "scale", 3.0)
    assert torch.equal(looked_up(module), X * 2)  # as the module itself answers
    assert "call scale.cache_clear()" in state_of(module).refusal.message
    counted()
    scale.cache_clear()
    assert torch.equal(looked_up(module), X * 3)
    assert torch.equal(looked_up(Scaled()), X * 3)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    scale.cache_clear()


def test_a_value_that_comes_back_does_not_make_a_memo_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scale.cache_clear()
    module = Scaled()
    looked_up(module)
    with monkeypatch.context() as context:
        context.setitem(VALUES, "scale", 3.0)
        looked_up(module)
    looked_up(module)
    assert "cache_clear" in state_of(module).refusal.message
    scale.cache_clear()


def test_methods_are_told_from_functions() -> None:
    class Holder:
        @functools.lru_cache  # noqa: B019
        def method(self) -> None: ...

    assert _is_method(vars(Holder)["method"])
    assert not _is_method(scale)
