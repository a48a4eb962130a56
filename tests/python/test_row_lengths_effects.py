# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length: a trial at another length leaves nothing behind in model or cache."""

from __future__ import annotations

import modcache
import pytest
import torch
from padded_rows import padded
from torch import nn


class LongestSeen(nn.Module):
    """Scales its positions by the longest input so far, as models with dynamic rotary tables do."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 10
        self.register_buffer("table", torch.arange(10.0))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.longest:
            self.longest = x.shape[1]
            self.table = torch.arange(float(self.longest)) * (10 / self.longest)
        return (x + self.table[None, : x.shape[1], None]) * mask[..., None]


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_a_trial_leaves_nothing_behind_in_the_module(form: str) -> None:
    plain, module = LongestSeen(), LongestSeen()
    if form == "scripted":
        module = torch.jit.script(module)
    x, mask = torch.ones(2, 8, 3), torch.ones(2, 8)
    mask[0, 4:] = 0
    for keys in ([0, 1], [2, 3]):
        found = modcache.lookup_or_run(module, (x, mask), keys, mask=1)
        assert torch.equal(found, plain(x, mask))
        assert (module.longest, len(module.table)) == (10, 10)
    longer = torch.ones(2, 12, 3), torch.ones(2, 12)
    assert torch.equal(modcache.lookup_or_run(module, longer, [4, 5], mask=1), plain(*longer))
    assert module.longest == 12, "what the call itself did is kept"


BUFFER = torch.zeros(10_000)


class WritesToOneBuffer(nn.Module):
    """Gives each result in the same memory, as wrappers of other runtimes do."""

    def __init__(self, is_heeded: bool) -> None:
        super().__init__()
        self.is_heeded = is_heeded

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made = x * mask[..., None] if self.is_heeded else x - x.mean(1, keepdim=True)
        return BUFFER[: x.numel()].view(x.shape).copy_(made)


@pytest.mark.parametrize("is_heeded", [True, False])
def test_a_trial_does_not_overwrite_the_result(is_heeded: bool) -> None:
    module = WritesToOneBuffer(is_heeded)
    given = padded([2, 4], 4)
    expected = module(*given).clone()
    for _ in range(2):
        found = modcache.lookup_or_run(module, given, [0, 1], scope="buffer@1", mask=1)
        assert torch.equal(found, expected)


def test_a_trial_asks_no_cache_inside() -> None:
    inner = modcache.cached(nn.Identity(), key="ids")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(x, ids=ids) * mask[..., None]

    x, mask = padded([2, 4], 6)
    ids = torch.tensor([1, 2])
    modcache.lookup_or_run(Outer(), (x, mask, ids), [101, 102], mask=1)
    assert modcache.stats()["key_conflicts"] == 0
    modcache.reset_stats()
    inner(x, ids=ids)
    assert modcache.stats()["hits_memory"] == 2


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_a_trial_draws_no_random_numbers_from_the_model(form: str) -> None:
    module: nn.Module = DrawsForLongRows()
    if form == "scripted":
        module = torch.jit.script(module)
    given = padded([2, 4], 6)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    modcache.lookup_or_run(module, given, [0, 1], mask=1)
    assert torch.equal(torch.rand(1), expected)


class DrawsForLongRows(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 10:
            torch.rand(1)
        return x * mask[..., None]


class SwapsForLongRows(nn.Module):
    """Replaces a part of itself where rows are long, as BigBird does where they are short."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(5, 5), nn.Tanh()).requires_grad_(False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 10:
            del self.parts._modules["0"]
            self.parts._modules["0"] = nn.Linear(5, 5).requires_grad_(False)
        return self.parts(x) * mask[..., None]


def test_submodules_are_what_they_were_and_in_their_order() -> None:
    module = SwapsForLongRows()
    before = list(module.parts)
    given = padded([2, 4], 6)
    expected = module(*given)
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, given, [0, 1], mask=1), expected)
        assert all(now is then for now, then in zip(module.parts, before, strict=True))
