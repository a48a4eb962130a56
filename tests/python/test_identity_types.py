# SPDX-License-Identifier: Apache-2.0
"""Attributes of modules that are types made of others, or times that look alike."""

from __future__ import annotations

import datetime
from typing import Any

import modcache
import pytest
import torch
from torch import nn


class Own:
    factor = 1.0


class Times(nn.Module):
    """Computes with what a class in its attribute says."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = self.kind
        while kind is not Own:
            kind = kind.__args__[0]
        return x * kind.factor


@pytest.mark.parametrize("kind", [list[Own], Own | None, list[tuple[Own, int]]], ids=str)
def test_a_class_inside_a_type_counts(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Times(kind)
    x = torch.ones(2)
    assert torch.equal(modcache.lookup_or_run(module, x, "k"), x)
    monkeypatch.setattr(Own, "factor", 5.0)
    assert torch.equal(modcache.lookup_or_run(module, x, "k"), 5 * x)


def test_of_two_equal_times_the_second_is_another() -> None:
    class Folds(nn.Module):
        def __init__(self, at: datetime.datetime) -> None:
            super().__init__()
            self.at = at

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 + self.at.fold)

    at = datetime.datetime(2020, 10, 25, 2, 30)
    first, second = Folds(at), Folds(at.replace(fold=1))
    assert modcache.fingerprint(first) != modcache.fingerprint(second)
