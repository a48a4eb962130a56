# SPDX-License-Identifier: Apache-2.0
"""Changes of code that are not detected, as docs/limits.md has it, and what finds them."""

from __future__ import annotations

import functools
from typing import Any

import modcache
import pytest
import torch
from look_ups import X, looked_up, made_of
from torch import nn


def plain(factor: float) -> Any:
    names: dict[str, Any] = {"__name__": "limits_own"}
    exec(compile(f"def f(x): return x * {factor}", "/srv/own.py", "exec"), names)
    return names["f"]


def in_c(factor: float) -> Any:
    return functools.partial(torch.mul, torch.tensor(factor))


class Hidden(nn.Module):
    """Calls what lies in a module of torch, under a computed name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.__dict__["limits_hook"](x)
        return result


@pytest.mark.parametrize("make", [plain, in_c, made_of])
def test_code_under_a_computed_name_is_not_detected(
    make: Any, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    for factor in (2.0, 3.0):
        monkeypatch.setattr(torch.nn.functional, "limits_hook", make(factor), raising=False)
        assert Hidden()(X)[0] == factor
        assert looked_up(Hidden()) == 2.0
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    with modcache.mode("verify"):
        assert looked_up(Hidden()) == 3.0
    assert counted()["verify_differences"] == 1
