# SPDX-License-Identifier: Apache-2.0
"""modcache.cached on modules and their classes: everything else about them stays as it was."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from cached_modules import (
    HIT,
    IDS,
    ONCE,
    Encoder,
    X,
    both,
    instance,
    uncached,
)
from processes import ProcessRunner
from torch import nn

Growth = Callable[[], dict[str, int]]


@both
def test_it_runs_once_per_key(counted: Growth, make: Any) -> None:
    module = make()
    want = uncached(module, X)
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == ONCE
    for args, kwargs in (((X,), {}), ((X, 1), {}), ((), {"x": X, "times": 1})):
        assert torch.equal(module(*args, **kwargs, ids=IDS), want)
        assert counted() == HIT
    assert torch.equal(module(X, times=2, ids=IDS), uncached(module, X, 2))


@both
def test_weights_that_change_are_seen(make: Any) -> None:
    module = make()
    module(X, ids=IDS)
    module.linear.weight.data.mul_(3)
    assert torch.equal(module(X, ids=IDS), uncached(module, X))
    module.scale = 5.0
    assert torch.equal(module(X, ids=IDS), uncached(module, X))


@both
def test_it_looks_like_its_target(make: Any) -> None:
    module = make()
    assert isinstance(module, Encoder)
    assert type(module).__qualname__ in ("Encoder", "Decorated")
    assert list(inspect.signature(module.forward).parameters) == ["x", "times", "ids"]
    assert list(inspect.signature(type(module)).parameters) == ["size"]
    assert list(module.state_dict()) == list(Encoder().state_dict())
    assert module.load_state_dict(Encoder().state_dict(), strict=True)
    assert [name for name, _ in module.named_modules()] == ["", "linear", "drop"]


def test_docstrings_stay() -> None:
    module = instance()
    assert type(module).__doc__ == "Encodes."
    assert module.forward.__doc__ == "Runs."
    assert repr(module) == repr(Encoder())


def test_the_plain_module_stays_plain_and_shares_its_state(counted: Growth) -> None:
    plain = Encoder().requires_grad_(False).eval()
    module = modcache.cached(plain, key="ids")
    assert type(plain) is Encoder
    assert torch.equal(plain(X), plain(X))
    assert not counted()
    module.half()
    assert plain.linear.weight.dtype == torch.float16
    plain.scale = 7.0
    assert module.scale == 7.0


def test_its_fingerprint_is_that_of_the_plain_module(counted: Growth) -> None:
    plain = Encoder().requires_grad_(False).eval()
    before = modcache.fingerprint(plain)
    module = modcache.cached(plain, key="ids", freeze=True)
    assert modcache.fingerprint(module) == modcache.fingerprint(plain) == before
    want = modcache.lookup_or_run(plain, X, IDS)
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert torch.equal(modcache.lookup_or_run(module, X, IDS), want)
    assert counted() == {"hits_memory": 6}
    parent, plain_parent = nn.Sequential(module), nn.Sequential(plain)
    assert modcache.fingerprint(parent) == modcache.fingerprint(plain_parent)


def test_a_decorated_class_has_the_fingerprint_of_the_undecorated_one() -> None:
    made = {}
    for is_decorated in (False, True):

        class Local(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = 2.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.scale

        made[is_decorated] = (
            modcache.cached(Local, key="ids", freeze=True) if is_decorated else Local
        )
    assert modcache.fingerprint(made[True]().train(False)) == modcache.fingerprint(
        made[False]().train(False)
    )


@both
def test_moving_and_casting(make: Any) -> None:
    module = make()
    module(X, ids=IDS)
    assert module.to("cpu") is module
    assert module.half().float() is module
    assert torch.equal(module(X, ids=IDS), uncached(module, X))
    assert module.double()(X.double(), ids=IDS).dtype == torch.float64


@both
def test_a_deep_copy_is_cached_and_has_an_identity_of_its_own(counted: Growth, make: Any) -> None:
    module = make()
    want = module(X, ids=IDS)
    double = copy.deepcopy(module)
    assert type(double) is type(module)
    counted()
    assert torch.equal(double(X, ids=IDS), want)
    assert counted() == HIT
    double.linear.weight.data.mul_(2)
    assert torch.equal(double(X, ids=IDS), uncached(double, X))
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == HIT


def test_a_module_in_a_circle_can_be_copied() -> None:
    module = instance()
    module.here = [module]
    assert copy.deepcopy(module).here[0].here[0].scale == 2.0


def _run_pickled(data: bytes) -> tuple[list[Any], dict[str, int]]:
    module = pickle.loads(data)
    return module(X, ids=IDS).tolist(), modcache.stats()


def _run_loaded(path: str) -> tuple[list[Any], dict[str, int]]:
    module = torch.load(path, weights_only=False)
    return module(X, ids=IDS).tolist(), modcache.stats()


@both
def test_it_can_be_pickled_to_another_process(processes: ProcessRunner, make: Any) -> None:
    module = make()
    want = module(X, ids=IDS)
    modcache.flush()
    value, stats = processes.run(_run_pickled, pickle.dumps(module)).value
    assert value == want.tolist()
    assert (stats["hits_disk"], stats["misses"]) == (3, 0)


@both
def test_it_can_be_saved_whole(processes: ProcessRunner, tmp_path: Path, make: Any) -> None:
    module = nn.ModuleList([make()])[0]
    want = module(X, ids=IDS)
    modcache.flush()
    torch.save(module, tmp_path / "whole.pt")
    value, stats = processes.run(_run_loaded, str(tmp_path / "whole.pt")).value
    assert value == want.tolist()
    assert (stats["hits_disk"], stats["misses"]) == (3, 0)


# Mistakes.


def test_what_cannot_be_cached_is_said_at_once() -> None:
    replaced = Encoder()
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    for target, says in (
        (torch.jit.script(nn.Linear(2, 2)), "is scripted"),
        (nn.DataParallel(Encoder()), "cache that, then wrap it"),
        (replaced, "was replaced on the instance"),
        (nn.ModuleList(), "has no forward"),
        (nn.ModuleDict, "has no forward"),
    ):
        with pytest.raises(TypeError, match=says):
            modcache.cached(target, key="ids")


@both
def test_a_missing_key_is_named(make: Any) -> None:
    with pytest.raises(TypeError, match=r"forward\(\) needs the keyword ids="):
        make()(X)


def test_a_cached_module_may_be_cached_anew(counted: Growth) -> None:
    module = modcache.cached(instance(), key="content")
    module(X)
    assert torch.equal(module(X), module(X.clone()))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}
    assert type(module).__qualname__ == "Encoder"


def doubling(forward: Any) -> Any:
    @functools.wraps(forward)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        return 2 * forward(*args, **kwargs)

    return doubled


def test_a_decorator_over_a_cached_forward_is_part_of_the_module() -> None:
    class Once(nn.Module):
        @modcache.cached(key=lambda x: "a")
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Doubled(Once):
        forward = doubling(Once.forward)

    assert torch.equal(modcache.lookup_or_run(Once(), X, "b"), X + 1)
    assert torch.equal(modcache.lookup_or_run(Doubled(), X, "b"), 2 * (X + 1))
    assert torch.equal(Doubled()(X), 2 * (X + 1))


class TenfoldCall(nn.Module):
    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x) * 10

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_what_a_call_adds_to_forward_is_added_once() -> None:
    plain = TenfoldCall()
    assert torch.equal(modcache.lookup_or_run(plain, X, "a"), plain(X))
    cached = modcache.cached(plain, key=lambda x: "a")
    for _ in range(2):
        assert torch.equal(cached(X), plain(X))


class HasSlots(nn.Module):
    __slots__ = ("times",)

    def __init__(self) -> None:
        super().__init__()
        self.times = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.times


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (HasSlots, "times in __slots__.*decorate the class"),
        (lambda: nn.LazyLinear(2), "run it once"),
    ],
)
def test_a_module_whose_state_cannot_be_shared_is_refused(make: Any, cure: str) -> None:
    with pytest.raises(TypeError, match=cure):
        modcache.cached(make(), key="ids")
