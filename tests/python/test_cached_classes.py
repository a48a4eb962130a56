# SPDX-License-Identifier: Apache-2.0
"""Cached modules that are frozen, derived from, hooked, wrapped and trained around."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import modcache
import pytest
import torch
from cached_modules import (
    HIT,
    IDS,
    ONCE,
    Decorated,
    Encoder,
    Frozen,
    X,
    both,
    frozen_instance,
    instance,
    uncached,
)
from torch import nn

Growth = Callable[[], dict[str, int]]


# Freezing.


@pytest.mark.parametrize("make", [frozen_instance, Frozen])
def test_frozen_modules_stay_in_evaluation_mode(counted: Growth, make: Any) -> None:
    module = make()
    for encoder in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert not any(p.requires_grad for p in encoder.parameters())
        parent = nn.Sequential(encoder, nn.Linear(2, 2)).train()
        assert parent.training
        assert not any(part.training for part in encoder.modules())
        assert encoder.train() is encoder
        assert not encoder.drop.training
        encoder(X, ids=IDS)
        counted()
        encoder(X, ids=IDS)
        assert counted() == HIT


def test_a_subclass_of_a_frozen_class_is_frozen_too() -> None:
    class Deeper(Frozen):
        def __init__(self) -> None:
            super().__init__(2)
            self.more = nn.Linear(2, 2)

    module = Deeper()
    assert module.linear.weight.requires_grad is False
    assert not module.train().training


def test_what_a_subclass_adds_is_frozen_when_its_init_is_through() -> None:
    class Registered(Frozen):
        made: ClassVar[list[str]] = []

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            cls.made.append(cls.__name__)

    class Deeper(Registered):
        def __init__(self) -> None:
            super().__init__(2)
            self.more = nn.Linear(2, 2)

        def train(self, mode: bool = True) -> Any:  # needs what __init__ makes last
            self.more.train(mode)
            return super().train(mode)

    module = Deeper()
    assert not any(p.requires_grad for p in module.parameters())
    assert not any(part.training for part in module.modules())
    assert Registered.made == ["Deeper"]


class OwnTrain(Encoder):
    """Goes on updating one part in any mode, as some do with their statistics."""

    seen: ClassVar[list[bool]] = []

    def train(self, mode: bool = True) -> Any:
        self.seen.append(mode)
        super().train(mode)
        self.linear.training = True
        return self


class FrozenOwnTrain(OwnTrain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x

    def train(self, mode: bool = True) -> Any:
        return super().train(mode)


@pytest.mark.parametrize(
    "make",
    [
        lambda: modcache.cached(OwnTrain(), key="ids", freeze=True),
        modcache.cached(FrozenOwnTrain, key="ids", freeze=True),
    ],
    ids=["instance", "class"],
)
def test_a_train_of_its_own_is_called_as_by_eval(make: Any) -> None:
    module = make()
    OwnTrain.seen.clear()
    assert nn.Sequential(module).train()[0] is module
    assert OwnTrain.seen == [False]
    assert [module.training, module.drop.training, module.linear.training] == [False, False, True]


def test_freezing_a_class_changes_no_fingerprint_of_it_or_of_subclasses() -> None:
    found: dict[bool, list[str]] = {}
    for is_frozen in (False, True):

        class Base(nn.Module):
            def __init_subclass__(cls, **options: Any) -> None:
                super().__init_subclass__(**options)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

            def train(self, mode: bool = True) -> Any:
                return super().train(mode)

        class WithoutInit(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        if is_frozen:
            for cls in (Base, WithoutInit):
                modcache.cached(cls, key="ids", freeze=True)

        class Sub(Base):
            def __init__(self) -> None:
                super().__init__()
                self.scale = 2.0

        made = [cls().eval() for cls in (Base, WithoutInit, Sub)]
        found[is_frozen] = [modcache.fingerprint(module) for module in made]
    assert found[True] == found[False]


# Subclasses.


class Inherits(Decorated):
    def __init__(self) -> None:
        super().__init__(2)
        self.scale = 3.0


class Overrides(Decorated):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, ids=ids) * 10


def test_subclasses_inherit_the_cached_forward(counted: Growth) -> None:
    module = Inherits().requires_grad_(False).eval()
    want = uncached(module, X)
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == {**ONCE, **HIT}


def test_a_subclass_may_run_it_as_a_part_of_its_own(counted: Growth) -> None:
    module = Overrides().requires_grad_(False).eval()
    want = uncached(module, X)
    counted()
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), want)
    assert counted() == {**ONCE, **HIT}
    # The whole forward under the same keys is another entry.
    whole = modcache.lookup_or_run(module, (X, IDS), IDS)
    assert torch.equal(whole, want)
    assert torch.equal(module(X, ids=IDS), want)


# What is around it.


@both
def test_hooks_run_at_each_call_and_are_not_cached(counted: Growth, make: Any) -> None:
    module = make()
    module.activation = _doubled  # something that a look at the module follows
    want = module(X, ids=IDS)
    counted()
    seen: list[torch.Tensor] = []
    handles = [
        module.register_forward_hook(lambda m, args, output: seen.append(output)),
        module.register_forward_hook(lambda m, args, output: output * 2),
        module.register_forward_pre_hook(lambda m, args: (args[0] + 0, *args[1:])),
    ]
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), want * 2)
    assert counted() == {"hits_memory": 6}
    assert len(seen) == 2
    for handle in handles:
        handle.remove()
    assert torch.equal(module(X, ids=IDS), want)


@both
def test_hooks_of_a_parent_that_is_cached_as_a_whole_count(make: Any) -> None:
    module = make()
    parent = nn.ModuleDict({"encoder": module})
    before = modcache.fingerprint(module)
    module.register_forward_hook(_doubled)
    assert modcache.fingerprint(module) == before
    assert modcache.fingerprint(parent) != modcache.fingerprint(nn.ModuleDict({"encoder": make()}))


def _doubled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


@both
def test_functional_call_uses_the_given_weights(make: Any) -> None:
    module = make()
    module(X, ids=IDS)
    zeros = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    out = torch.func.functional_call(module, zeros, (X,), {"ids": IDS})
    assert torch.equal(out, torch.full_like(out, 1.0 if type(module) is Decorated else 0.0))
    assert torch.equal(module(X, ids=IDS), uncached(module, X))


@both
def test_data_parallel_of_one_device(counted: Growth, make: Any) -> None:
    module = nn.DataParallel(make())
    want = module(X, ids=IDS)
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == {**ONCE, **HIT}


class LitModel(nn.Module):
    """Does to its parts what Lightning's modules and trainers do."""

    def __init__(self, encoder: nn.Module, rate: float = 0.5) -> None:
        super().__init__()
        frame: Any = inspect.currentframe()
        values = inspect.getargvalues(frame).locals
        self.hparams = {k: copy.deepcopy(v) for k, v in values.items() if k in ("rate", "encoder")}
        self.encoder = encoder
        self.head = nn.Linear(2, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, ids = batch
        return self.head(self.encoder(x, ids=ids)).square().mean()


@pytest.mark.parametrize("make", [frozen_instance, Frozen])
def test_a_training_loop_in_lightnings_manner(counted: Growth, make: Any) -> None:
    model = LitModel(make())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    losses = []
    counted()
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        loss = model.training_step((X, IDS))
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            losses.append(float(model.training_step((X, IDS))))
    assert counted() == {**ONCE, "hits_memory": 15}
    assert losses[0] > losses[-1]
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 3


def test_a_forward_that_is_replaced_in_the_class_counts(
    monkeypatch: pytest.MonkeyPatch, counted: Growth
) -> None:
    module = instance()
    module(X, ids=IDS)
    monkeypatch.setattr(Encoder, "forward", lambda self, x, times=1: x * 100)
    counted()
    assert torch.equal(module(X, ids=IDS), X * 100)
    assert counted() == ONCE


class KeyOfNames:
    """A key function that cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: torch.Tensor) -> str:
        return f"{x.sum()}"


def test_key_functions_may_be_objects(counted: Growth) -> None:
    module = modcache.cached(Encoder().requires_grad_(False).eval(), key=KeyOfNames())
    assert torch.equal(module(X), pickle.loads(pickle.dumps(module))(X))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
