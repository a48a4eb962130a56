# SPDX-License-Identifier: Apache-2.0
"""Saving a module renumbers its variables and adds casts: neither makes another module of it."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

from typing import Any, List, Tuple  # noqa: UP035  (TorchScript reads these)

import modcache
import pytest
import torch
from models import frozen, reloaded
from torch import nn

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


class LastState(nn.Module):
    """torch's LSTM has two methods with variables of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[1][0]


class UnitLength(nn.Module):
    """torch.norm assigns an int to a variable that is Optional[int]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.norm(x, dim=-1, keepdim=True)


class Repeats(nn.Module):
    """Every variable has the name of another, also in the other method."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = x * 2
        value = self.more(value) + value
        if bool(value.sum() > 0):
            value = value - 1
        return value + value

    def more(self, value: torch.Tensor) -> torch.Tensor:
        value = value + 1
        value = value * value
        return value * value


class Forks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        futures: List[torch.jit.Future[torch.Tensor]] = []  # noqa: UP006
        for _ in range(2):
            x = x + 1
            futures.append(torch.jit.fork(twice, x))
        return torch.jit.wait(futures[0]) + torch.jit.wait(futures[1])


def twice(x: torch.Tensor) -> torch.Tensor:
    x = x + x
    return x * x


SCRIPTED = {"lstm": LastState, "norm": UnitLength, "repeats": Repeats, "forks": Forks}


class Traced(nn.Module):
    """Traced values are called input, input.1, input.2, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(*[TracedStage() for _ in range(3)])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.stages(input) + 1


class TracedStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = self.first(input).relu_()
        x = torch.cat([x, self.second(x)], -1).sum(-1, keepdim=True)
        return torch.cat([x * x, x, x + x, x - 1], -1)


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_scripted_module_keeps_its_fingerprint(name: str, counted: Any) -> None:
    check(torch.jit.script(frozen(SCRIPTED[name]())), counted)


def test_a_traced_module_keeps_its_fingerprint(counted: Any) -> None:
    check(torch.jit.trace(frozen(Traced()), X), counted)


def check(module: Any, counted: Any) -> None:
    once = reloaded(module)
    assert modcache.fingerprint(once) == modcache.fingerprint(module)
    assert modcache.fingerprint(reloaded(once)) == modcache.fingerprint(module)
    expected = modcache.lookup_or_run(module, X, "k")
    counted()
    assert torch.equal(modcache.lookup_or_run(once, X, "k"), expected)
    assert counted() == {"hits_memory": 1}


def swapped(swap: bool) -> nn.Module:
    class Swapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = x + 1
            b = x * 2
            a, b = a * b, a - b
            return a / b

    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = x + 1
            b = x * 2
            a, b = a * b, a - b
            return b / a

    return Other() if swap else Swapped()


class SaysA(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, str]:  # noqa: UP006
        return x, "_0"


class SaysB(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, str]:  # noqa: UP006
        return x, "_1"


def test_which_variable_is_used_where_still_counts() -> None:
    scripted = [torch.jit.script(swapped(swap)) for swap in (False, True)]
    assert modcache.fingerprint(scripted[0]) != modcache.fingerprint(scripted[1])


def test_text_that_looks_like_a_variable_still_counts() -> None:
    says = [torch.jit.script(module()) for module in (SaysA, SaysB)]
    assert modcache.fingerprint(says[0]) != modcache.fingerprint(says[1])
