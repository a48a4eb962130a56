# SPDX-License-Identifier: Apache-2.0
"""Modules cached with ``freeze=True`` whose parameters require grad again."""

from __future__ import annotations

import copy
from typing import Any

import modcache
import pytest
import torch
from keyed_modules import Growth
from torch import nn


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.norm(self.first(x)).relu())
        return result


Decorated = modcache.cached(type("Decorated", (Backbone,), {}), key="ids", freeze=True)
MAKERS = {
    "instance": lambda: modcache.cached(Backbone(), key="ids", freeze=True),
    "class": Decorated,
}


def modes_of(module: nn.Module) -> set[bool]:
    return {part.training for part in module.modules()}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_train_does_what_it_says_once_a_parameter_requires_grad(make: Any) -> None:
    module = make()
    parent = nn.Sequential(module, nn.Linear(4, 2))
    parent.train()
    assert modes_of(module) == {False}
    module.requires_grad_(True)
    assert modes_of(module) == {False}
    assert module.train() is module
    assert modes_of(module) == {True}
    parent.eval()
    assert modes_of(module) == {False}
    parent.train()
    assert modes_of(module) == {True}
    module.train(False)
    assert modes_of(module) == {False}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_one_unfrozen_parameter_is_enough(make: Any) -> None:
    module = make()
    module.last.requires_grad_(True)
    nn.Sequential(module).train()
    assert modes_of(module) == {True}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_module_that_is_frozen_again_stays_in_evaluation_mode(make: Any) -> None:
    module = make()
    parent = nn.Sequential(module)
    module.requires_grad_(True)
    parent.train()
    module.requires_grad_(False)
    parent.train()
    assert modes_of(module) == {False}


def test_statistics_move_in_training_mode() -> None:
    module = modcache.cached(Backbone(), key="ids", freeze=True)
    x = torch.randn(8, 4)
    ids = torch.arange(8)
    before = module.norm.running_mean.clone()
    module.train()
    module(x, ids=ids)
    assert torch.equal(module.norm.running_mean, before)
    module.requires_grad_(True)
    module.train()
    result = module(x, ids=ids)
    assert not torch.equal(module.norm.running_mean, before)
    assert result.requires_grad


def test_a_lazy_module_is_not_loaded_by_train() -> None:
    lazy = modcache.lazy(Backbone, scope="backbone@unfreezing")
    module: Any = modcache.cached(lazy, key="ids", freeze=True)
    module.train()
    assert not lazy.loaded
    assert modes_of(lazy.load()) == {False}
    module.requires_grad_(True)
    module.train()
    assert modes_of(lazy.load()) == {True}


def trained(model: nn.Module, backbone: nn.Module, **keys: torch.Tensor) -> list[torch.Tensor]:
    """Trains a head on a frozen backbone; from the third epoch on also the backbone."""
    head = nn.Linear(4, 2)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 4, generator=generator)
    y = torch.randint(2, (16,), generator=generator)
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-1, 1, 8).reshape(2, 4))
        head.bias.zero_()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    model.train()
    if not keys:  # what freeze=True does
        backbone.requires_grad_(False).eval()
    for epoch in range(5):
        if epoch == 3:
            backbone.requires_grad_(True).train()
            optimizer.add_param_group({"params": list(backbone.parameters())})
        for rows in torch.arange(16).split(8):
            given = {name: ids[rows] for name, ids in keys.items()}
            loss = nn.functional.cross_entropy(head(backbone(x[rows], **given)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [*head.state_dict().values(), *backbone.state_dict().values()]


def test_gradual_unfreezing_trains_the_same_model(counted: Growth) -> None:
    torch.manual_seed(0)
    plain = Backbone()
    cached = modcache.cached(copy.deepcopy(plain), key="ids", freeze=True)
    want = trained(nn.Sequential(plain), plain)
    seen = trained(nn.Sequential(cached), cached, ids=torch.arange(16))
    for one, other in zip(want, seen, strict=True):
        torch.testing.assert_close(one, other)
    counts = counted()
    assert counts["hits_memory"] == 32
    assert counts["bypassed_grad"] == 32
