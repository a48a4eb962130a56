# SPDX-License-Identifier: Apache-2.0
"""Targets that are changed in place after ``modcache.cached``, as IPython's autoreload does."""

from __future__ import annotations

from typing import Any

import modcache
import torch
from torch import nn

X = torch.ones(1, 2)


def test_a_default_that_was_changed_is_the_default() -> None:
    class Times(nn.Module):
        def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
            return x * factor

    cached = modcache.cached(Times(), key="ids")
    assert torch.equal(cached(X, ids=["a"]), 2 * X)
    Times.forward.__defaults__ = (5.0,)
    for _ in range(2):
        assert torch.equal(cached(X, factor=2.0, ids=["a"]), 2 * X)
        assert torch.equal(cached(X, ids=["a"]), 5 * X)


def test_parameters_that_changed_places_have_their_new_ones() -> None:
    def function(x: torch.Tensor, a: float = 1.0, b: float = 1.0) -> torch.Tensor:
        return x * a

    def later(x: torch.Tensor, b: float = 1.0, a: float = 1.0, **more: Any) -> torch.Tensor:
        return x * a * more.get("c", 1)

    cached = modcache.cached(function, key="ids")
    cached(X, ids=["a"])
    function.__code__ = later.__code__
    for _ in range(2):
        assert torch.equal(cached(X, a=3.0, ids=["a"]), 3 * X)
        assert torch.equal(cached(X, a=3.0, c=2, ids=["a"]), 6 * X)
