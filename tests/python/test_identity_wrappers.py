# SPDX-License-Identifier: Apache-2.0
"""Wrappers, and scripted modules inside eager ones: what may differ from the module inside."""

from __future__ import annotations

import functools
from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from models import frozen, reloaded
from torch import nn

X = torch.linspace(-1, 1, 8)


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


class Doubling(nn.DataParallel):
    def forward(self, *inputs: Any, **options: Any) -> Any:
        return super().forward(*inputs, **options) * 2


def with_hook(wrap: Any, name: str = "register_forward_hook", **options: Any) -> Any:
    def make(module: nn.Module) -> Any:
        wrapper = wrap(module)
        hooks = {
            "register_forward_hook": lambda *seen: seen[-1] * 100,
            "register_forward_pre_hook": lambda _, inputs: (inputs[0] * 100,),
        }
        getattr(wrapper, name)(hooks[name], **options)
        return wrapper

    return make


def with_own_forward(wrap: Any) -> Any:
    def make(module: nn.Module) -> Any:
        wrapper = wrap(module)
        inner = wrapper.forward
        wrapper.forward = functools.wraps(inner)(lambda x: inner(x) * 100)
        return wrapper

    return make


OPAQUE = {
    "data parallel, hook": with_hook(nn.DataParallel),
    "data parallel, hook with keywords": with_hook(nn.DataParallel, with_kwargs=True),
    "data parallel, pre-hook": with_hook(nn.DataParallel, "register_forward_pre_hook"),
    "data parallel, own forward": with_own_forward(nn.DataParallel),
    "compiled, hook": with_hook(compiled),
    "compiled, own forward": with_own_forward(compiled),
    "subclass": Doubling,
    "compiled hooked data parallel": lambda module: compiled(with_hook(nn.DataParallel)(module)),
}


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.parametrize("wrapped_first", [True, False])
def test_a_wrapper_that_changes_the_result_is_not_its_module(
    name: str, wrapped_first: bool
) -> None:
    module = frozen(nn.Linear(8, 8))
    wrapper = OPAQUE[name](module)
    for candidate in (wrapper, module) if wrapped_first else (module, wrapper):
        for _ in range(2):
            result = modcache.lookup_or_run(candidate, X, "k")
            assert torch.equal(result, candidate(X))


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, compiled, lambda m: compiled(nn.DataParallel(m))],
    ids=["data parallel", "compiled", "both"],
)
def test_a_plain_wrapper_is_its_module(wrap: Any, counted: Any) -> None:
    module = frozen(nn.Linear(8, 8))
    unwrapped = modcache.fingerprint(module)
    assert modcache.fingerprint(wrap(module)) == unwrapped
    assert modcache.fingerprint(module) == unwrapped, "wrapping leaves no trace in it"
    for candidate in (module, wrap(module)):
        modcache.lookup_or_run(candidate, X, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_scripting_leaves_no_trace() -> None:
    module = frozen(nn.Sequential(nn.Linear(8, 8)))
    before = modcache.fingerprint(module)
    torch.jit.script(module)
    assert modcache.fingerprint(module) == before


def test_a_compiled_part_is_what_it_compiles(counted: Any) -> None:
    part = frozen(nn.Linear(8, 8))
    assert modcache.fingerprint(nn.Sequential(compiled(part))) == modcache.fingerprint(
        nn.Sequential(part)
    )
    hooked = nn.Sequential(with_hook(compiled)(part))
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(hooked, X, "k"), hooked(X))
    assert bypassed(counted()) == {"bypassed_identity": 2}


def test_keywords_of_a_hook_count() -> None:
    def sees(_: nn.Module, *seen: Any) -> Any:
        return seen[-1] * len(seen)

    plain, with_keywords = nn.ReLU(), nn.ReLU()
    plain.register_forward_hook(sees)
    with_keywords.register_forward_hook(sees, with_kwargs=True)
    for module in (plain, with_keywords):
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


class Child(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("used", torch.ones(8))
        self.register_buffer("other", torch.full((8,), factor))
        self.table = {"gain": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.used

    @torch.jit.export
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.other


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Child()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Parent(nn.Module):
    def __init__(self, child: nn.Module, use: Any) -> None:
        super().__init__()
        self.child = child
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.child, x)


USES = {
    "another method": (Child, lambda c, x: c.encode(x), lambda c: c.other.mul_(5)),
    "a buffer": (Child, lambda c, x: x * c.other, lambda c: c.other.mul_(5)),
    "a dict": (Child, lambda c, x: x * c.table["gain"], lambda c: setattr(c, "table", {"gain": 5})),
    "a part's method": (
        Nested,
        lambda c, x: c.inner.encode(x),
        lambda c: c.inner.other.mul_(5),
    ),
    "a Python attribute": (
        Child,
        lambda c, x: x * getattr(c, "extra", 1),
        lambda c: setattr(c, "extra", 5),
    ),
}


@pytest.mark.parametrize("name", USES)
def test_all_of_a_scripted_child_counts(name: str, counted: Any) -> None:
    make, use, change = USES[name]
    parent = Parent(torch.jit.script(make()), use)
    for _ in range(2):
        modcache.lookup_or_run(parent, X, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    before = modcache.fingerprint(parent)
    change(parent.child)
    assert torch.equal(modcache.lookup_or_run(parent, X, "k"), parent(X))
    assert modcache.fingerprint(parent) != before
    assert counted()["stored"] == 1


class Squares(Child):
    @torch.jit.export
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_the_code_of_every_method_of_a_scripted_child_counts() -> None:
    for child in (Child(), Squares()):
        parent = Parent(torch.jit.script(child), lambda c, x: c.encode(x))
        assert torch.equal(modcache.lookup_or_run(parent, X, "k"), parent(X))


def test_a_scripted_child_is_swapped() -> None:
    parent = Parent(torch.jit.script(Child()), lambda c, x: c.encode(x))
    for child in (Child(), Squares(), Child(3.0), Child()):
        parent.child = torch.jit.script(child)
        assert torch.equal(modcache.lookup_or_run(parent, X, "k"), parent(X))


def test_a_scripted_child_from_a_file(counted: Any) -> None:
    """Its methods come to the Python side at their first use."""
    parent = Parent(reloaded(torch.jit.script(Child())), lambda c, x: c.encode(x))
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(parent, X, "k"), parent(X))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert modcache.fingerprint(parent) == modcache.fingerprint(
        Parent(torch.jit.script(Child()), parent.use)
    )
    parent.child.encode = lambda x: x * 5
    assert torch.equal(modcache.lookup_or_run(parent, X, "k"), X * 5)


def test_an_equal_scripted_child_is_the_same() -> None:
    one, two = (Parent(torch.jit.script(Child()), USES["another method"][1]) for _ in range(2))
    assert modcache.fingerprint(one) == modcache.fingerprint(two)
    one.child.other.mul_(2)
    assert modcache.fingerprint(one) != modcache.fingerprint(two)
    two.child.other.mul_(2)
    assert modcache.fingerprint(one) == modcache.fingerprint(two)
