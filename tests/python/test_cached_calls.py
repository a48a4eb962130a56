# SPDX-License-Identifier: Apache-2.0
"""A cached module or function gets each call as the caller made it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

Growth = Callable[[], dict[str, int]]
X = torch.arange(6.0).reshape(3, 2)
IDS = torch.arange(3)
TIMES = torch.tensor([[1.0], [2.0], [3.0]])
EVERY_MODE = ["on", "read", "refresh", "verify", "off"]


def reads_keywords(function: Any) -> Any:
    """Multiplies by ``scale`` once more where that is given by name."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * kwargs.get("scale", 1.0)

    return wrapper


def sets_a_default(function: Any) -> Any:
    """As decorators of transformers 5 do, which fail on an argument that is there by place."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("use_cache", True)
        return function(*args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    @reads_keywords
    def forward(self, x: torch.Tensor, scale: Any = 1.0, bias: Any = 0.0) -> torch.Tensor:
        return self.linear(x) * scale + bias


class WithDefault(nn.Module):
    @sets_a_default
    def forward(
        self, x: torch.Tensor, mask: Any = None, use_cache: bool | None = None
    ) -> torch.Tensor:
        return x * (2 if use_cache else 3) + (0 if mask is None else mask)


class Plain(nn.Module):
    def forward(self, x: torch.Tensor, scale: Any = 1.0, bias: Any = 0.0) -> torch.Tensor:
        return x * scale + bias


class OfNoGrad(Plain):
    @torch.no_grad()
    def forward(self, x: torch.Tensor, scale: Any = 1.0, bias: Any = 0.0) -> torch.Tensor:
        return x * scale + bias


class OfAutocast(Plain):
    @torch.autocast("cpu", enabled=False)
    def forward(self, x: torch.Tensor, scale: Any = 1.0, bias: Any = 0.0) -> torch.Tensor:
        return x * scale + bias


@reads_keywords
def decorated(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x + scale


class Owner:
    @modcache.cached(key="ids")
    @reads_keywords
    def method(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale


class OwnerModule(nn.Module):
    @modcache.cached(key="ids")
    @reads_keywords
    def features(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale


def frozen(cls: Any) -> Any:
    return cls().requires_grad_(False).eval()


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, 10.0), {}),
    ((X,), {"scale": 10.0}),
    ((X,), {"scale": 1.0}),
    ((), {"x": X, "scale": 10.0}),
    ((), {"scale": 10.0, "x": X}),
    ((X, 10.0), {"bias": 1.0}),
    ((X,), {"bias": 1.0, "scale": TIMES}),
    ((X, TIMES), {}),
    ((X, 1.0, 0.0), {}),
]


@pytest.mark.parametrize("keys", [IDS, ["a", "b", "c"], "whole"])
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_decorated_forward_gets_what_was_given(mode: str, keys: Any) -> None:
    module = frozen(Decorated)
    cached = modcache.cached(module, key="ids")
    modcache.set_mode(mode)
    for _ in range(2):
        for args, kwargs in CALLS:
            assert torch.equal(cached(*args, **kwargs, ids=keys), module(*args, **kwargs))


def test_forms_that_a_decorated_forward_can_tell_have_entries_of_their_own(
    counted: Growth, reopen: Callable[[], None]
) -> None:
    module = frozen(Decorated)
    cached = modcache.cached(module, key="ids")
    by_place, by_name = module(X, 10.0), module(X, scale=10.0)
    assert not torch.equal(by_place, by_name)
    for _ in range(2):
        assert torch.equal(cached(X, 10.0, ids="a"), by_place)
        assert torch.equal(cached(X, scale=10.0, ids="a"), by_name)
        reopen()
    assert counted() == {"misses": 2, "stored": 2, "hits_disk": 2}


def test_rows_that_are_missing_are_cut_from_places_and_names() -> None:
    module = frozen(Decorated)
    cached = modcache.cached(module, key="ids")
    cached(X[:1], scale=TIMES[:1], ids=IDS[:1])
    before = modcache.stats()
    assert torch.allclose(cached(X, scale=TIMES, ids=IDS), module(X, scale=TIMES))
    after = modcache.stats()
    assert after["misses"] - before["misses"] == 2
    assert after["hits_memory"] - before["hits_memory"] == 1


def test_a_list_of_keys_that_is_an_argument_is_cut_where_it_was_given() -> None:
    def adding(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) + 100 * ("names" in kwargs)

        return wrapper

    @modcache.cached(key="names")
    @adding
    def lengths(x: torch.Tensor, names: list[str]) -> torch.Tensor:
        return x * 0 + torch.tensor([[len(name)] for name in names])

    lengths(X[:1], ["a"])
    assert lengths(X, ["a", "bb", "ccc"])[:, 0].tolist() == [1, 2, 3]
    lengths(X[:1], names=["a"])
    # The other two rows were run alone, by keyword.
    assert lengths(X, names=["a", "bb", "ccc"])[:, 0].tolist() == [101, 102, 103]


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_default_that_a_decorator_sets_is_given_once(mode: str) -> None:
    module = frozen(WithDefault)
    cached = modcache.cached(module, key="ids", freeze=True)
    modcache.set_mode(mode)
    for kwargs in ({}, {"use_cache": False}, {"mask": TIMES, "use_cache": False}, {"mask": TIMES}):
        for _ in range(2):
            assert torch.equal(cached(X, **kwargs, ids=IDS), module(X, **kwargs))


@pytest.mark.parametrize("make", [lambda: decorated, lambda: Owner().method])
def test_functions_and_methods(make: Any) -> None:
    function = make()
    function = function if hasattr(function, "__self__") else modcache.cached(function, key="ids")
    for _ in range(2):
        assert torch.equal(function(X, ids=IDS), X + 1)
        assert torch.equal(function(X, 10.0, ids=IDS), X + 10)
        assert torch.equal(function(X, scale=10.0, ids=IDS), (X + 10) * 10)


def test_methods_of_modules() -> None:
    module = OwnerModule().eval()
    for _ in range(2):
        assert torch.equal(module.features(X, 10.0, ids=IDS), X + 10)
        assert torch.equal(module.features(X, scale=10.0, ids=IDS), (X + 10) * 10)


@pytest.mark.parametrize("cls", [Plain, OfNoGrad, OfAutocast])
def test_forms_that_no_code_can_tell_are_one_entry(counted: Growth, cls: Any) -> None:
    cached = modcache.cached(frozen(cls), key="ids")
    for _ in range(2):
        cached(X, 3.0, ids="a")
        cached(X, scale=3.0, ids="a")
        cached(scale=3.0, x=X, bias=0.0, ids="a")
        modcache.lookup_or_run(frozen(cls), (X, 3.0), "a")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 7}


def test_a_decorated_call_by_place_shares_with_lookup_or_run(counted: Growth) -> None:
    module = frozen(Decorated)
    modcache.lookup_or_run(module, (X, 3.0), "a")
    modcache.cached(module, key="ids")(X, 3.0, ids="a")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_the_order_of_open_keywords_is_the_callers() -> None:
    @modcache.cached(key="name")
    def first(x: torch.Tensor, **factors: float) -> torch.Tensor:
        return x * next(iter(factors.values()))

    for _ in range(2):
        assert torch.equal(first(X, b=2.0, a=3.0, name="k"), X * 2)
        assert torch.equal(first(X, a=3.0, b=2.0, name="k"), X * 3)


def test_a_forward_that_is_decorated_after_caching_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Plain().eval()
    cached = modcache.cached(module, key="ids")
    cached(X, scale=10.0, ids=IDS)
    monkeypatch.setattr(Plain, "forward", reads_keywords(Plain.forward))
    for _ in range(2):
        assert torch.equal(cached(X, scale=10.0, ids=IDS), module(X, scale=10.0))
        assert torch.equal(cached(X, 10.0, ids=IDS), module(X, 10.0))


def test_hooks_see_keywords_and_change_them() -> None:
    module = Plain().eval()
    module.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "scale": kwargs.get("scale", 1.0) * 2}),
        with_kwargs=True,
    )
    cached = modcache.cached(module, key="ids")
    for kwargs in ({}, {"scale": 3.0}):
        for _ in range(2):
            assert torch.equal(cached(X, ids=IDS, **kwargs), module(X, **kwargs))


def test_the_caller_gets_the_functions_own_errors_for_wrong_arguments() -> None:
    cached = modcache.cached(frozen(Decorated), key="ids")
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        cached(X, x=X, ids=IDS)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        cached(X, other=1, ids=IDS)


def run_pickled(path: str) -> tuple[bool, bool, dict[str, int]]:
    cached = torch.load(path, weights_only=False)
    kept = torch.equal(cached(X, scale=10.0, ids=IDS), (X @ cached.linear.weight.T * 10) * 10)
    return (
        kept,
        torch.equal(cached(X, 10.0, ids=IDS), X @ cached.linear.weight.T * 10),
        (modcache.stats()),
    )


def test_a_pickled_module(processes: ProcessRunner, tmp_path: Path) -> None:
    module = frozen(Decorated)
    module.linear.bias.zero_()
    cached = modcache.cached(module, key="ids")
    cached(X, scale=10.0, ids=IDS)
    modcache.flush()
    torch.save(cached, tmp_path / "cached.pt")
    path = str(tmp_path / "cached.pt")
    by_name, by_place, stats = processes.run(run_pickled, path).value
    assert (by_name, by_place) == (True, True)
    assert (stats["hits_disk"], stats["misses"]) == (3, 3)


def test_a_fill_shares_with_calls_by_name(counted: Growth) -> None:
    cached = modcache.cached(frozen(Decorated), key="ids")
    batch = {"x": X, "scale": TIMES, "ids": IDS}
    assert modcache.fill(cached, [batch], progress=False).stored == 3
    counted()
    cached(**batch)
    assert counted() == {"hits_memory": 3}
    assert modcache.fill(cached, [(X, TIMES, IDS)], progress=False).stored == 3
    counted()
    cached(X, TIMES, ids=IDS)
    assert counted() == {"hits_memory": 3}


def test_explain_is_about_the_call_by_place() -> None:
    cached = modcache.cached(frozen(Decorated), key="ids")
    cached(X, scale=10.0, ids="a")
    assert modcache.explain(cached, (X, 10.0), "a").status == "miss"
    cached(X, 10.0, ids="a")
    assert modcache.explain(cached, (X, 10.0), "a").status == "hit"


class Parent(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, scale=10.0, ids=ids) + 1


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_code_passes_names_on(counted: Growth, fullgraph: bool) -> None:
    module = frozen(Decorated)
    parent = Parent(modcache.cached(module, key="ids"))
    compiled = torch.compile(parent, backend="eager", fullgraph=fullgraph)
    want = module(X, scale=10.0) + 1
    for _ in range(2):
        assert torch.equal(compiled(X, IDS), want)
    assert torch.equal(parent(X, IDS), want)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 6}


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_pass_names_on(counted: Growth, strict: bool) -> None:
    module = frozen(Decorated)
    parent = Parent(modcache.cached(module, key="ids"))
    exported = torch.export.export(parent, (X, IDS), strict=strict).module()
    counted()
    want = module(X, scale=10.0) + 1
    for _ in range(2):
        assert torch.equal(exported(X, IDS), want)
    assert torch.equal(parent(X, IDS), want)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 6}
