# SPDX-License-Identifier: Apache-2.0
"""Whatever a caller does to a result, the next hit is clean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from models import in_form
from torch import nn

X = torch.linspace(1, 2, 8).reshape(2, 4)


def write_into_storage(result: torch.Tensor) -> None:
    result.untyped_storage().fill_(0)


def write_through_set(result: torch.Tensor) -> None:
    torch.empty(0).set_(result.untyped_storage(), 0, (4,)).fill_(7)


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda result: result.add_(1),
    "view": lambda result: result.view(-1)[0:1].fill_(9),
    "transposed": lambda result: result.t().mul_(2),
    "setitem": lambda result: result.__setitem__(0, 5.0),
    "numpy": lambda result: result.numpy().fill(3),
    "dlpack": lambda result: torch.from_dlpack(result).zero_(),
    "data": lambda result: result.data.zero_(),
    "detach": lambda result: result.detach().zero_(),
    "storage": write_into_storage,
    "set_": write_through_set,
    "resize_": lambda result: result.resize_(8, 8).zero_(),
    "out=": lambda result: torch.add(result, 1, out=result),
}
SIZES = {"small": (2, 4), "large": (256, 1024)}  # 1 MiB: another way of handing out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tier", ["memory", "disk", "disk only"])
@pytest.mark.parametrize("name", WRITES)
def test_writing_into_a_result_spoils_no_later_hit(
    name: str, tier: str, size: str, reopen: Any
) -> None:
    write = WRITES[name]
    if tier == "disk only":
        modcache.configure(memory=0)
    x = torch.linspace(1, 2, SIZES[size][0] * SIZES[size][1]).reshape(SIZES[size])
    module = torch.jit.script(nn.ReLU())
    expected = x.relu()
    write(modcache.lookup_or_run(module, x, "k"))
    for _ in range(3):
        if tier != "memory":
            reopen()
        result = modcache.lookup_or_run(module, x, "k")
        assert torch.equal(result, expected)
        write(result)
    assert modcache.stats()["misses"] == 1


@pytest.mark.parametrize("name", WRITES)
def test_the_same_for_eager_modules(name: str) -> None:
    module = nn.ReLU()
    WRITES[name](modcache.lookup_or_run(module, X, "k"))
    for _ in range(2):
        result = modcache.lookup_or_run(module, X, "k")
        assert torch.equal(result, X)
        WRITES[name](result)


class ReturnsItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class ReturnsItsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_result_that_is_the_input_may_be_changed_later(face: str) -> None:
    x = X.clone()
    module = in_form(ReturnsItsInput(), face)
    modcache.lookup_or_run(module, x, "k")
    x.zero_()
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), X)


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_result_that_is_a_buffer_may_be_changed_later(face: str) -> None:
    module = in_form(ReturnsItsBuffer(), face)
    for call in range(3):
        result = modcache.lookup_or_run(module, X, "k")
        assert torch.equal(result, module.table), call
        result.add_(1)


def test_two_hits_do_not_share_memory() -> None:
    module = torch.jit.script(nn.ReLU())
    modcache.lookup_or_run(module, X, "k")
    one, two = (modcache.lookup_or_run(module, X, "k") for _ in range(2))
    one.zero_()
    assert torch.equal(two, X)
