# SPDX-License-Identifier: Apache-2.0
"""The fast path answers nothing under modes of torch, transforms and traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hits import X, frozen, hit
from modcache._call.fast_path import fast_hit
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Ask = Callable[[], Any]


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def under(mode: Any) -> Callable[[Ask], None]:
    def asked(ask: Ask) -> None:
        with mode:
            ask()

    return asked


def in_a_transform(ask: Ask) -> None:
    torch.func.vmap(lambda x: (ask(), x)[1])(torch.ones(2))


def in_a_trace(ask: Ask) -> None:
    torch.jit.trace(lambda x: (ask(), x + 1)[1], (torch.ones(2),), check_trace=False)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(under(Functions()), id="functions"),
        pytest.param(under(Operators()), id="operators"),
        pytest.param(under(torch.device("cpu")), id="default_device"),
        pytest.param(in_a_transform, id="transform"),
        pytest.param(in_a_trace, id="traced"),
    ],
)
def test_nothing_is_answered(asked: Callable[[Ask], None]) -> None:
    module = frozen(nn.Linear(4, 4))
    hit(module)
    found: list[Any] = []

    def ask() -> None:
        found.append(fast_hit(module, X, "k", "", "forward"))

    ask()
    asked(ask)
    ask()
    before, during, after = found
    assert isinstance(before, torch.Tensor)
    assert during is None
    assert isinstance(after, torch.Tensor)
