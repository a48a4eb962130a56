# SPDX-License-Identifier: Apache-2.0
"""Classes and functions of one name, and modules that are reached from their own code."""

# What is exec'd or made by a factory here has no name of its own in any file.

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 8)


def same_as_run(module: nn.Module, key: str = "k") -> bool:
    return torch.equal(modcache.lookup_or_run(module, X, key), module(X))


def activation(function: Any) -> Any:
    class Act(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    return Act


def callable_class(factor: int) -> Any:
    class Call:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * factor

    return Call


def adder(amount: int) -> Any:
    return lambda x: x + amount


class Box(nn.Module):
    def __init__(self, *functions: Any) -> None:
        super().__init__()
        self.functions = list(functions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for function in self.functions:
            x = function(x)
        return x


class Boxed:
    """Has a method, which can be bound."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


RELU, TANH = activation(torch.relu), activation(torch.tanh)
TWICE, THRICE = callable_class(2), callable_class(3)
ONE, TWO = adder(1), adder(2)
FOUR, FIVE = Boxed(4), Boxed(5)

# Of two things, a and b, that have one name: the orders a b a, a b b and b a a are three modules.
NAMESAKES = {
    "module classes": (nn.Sequential, RELU, TANH, lambda cls: cls()),
    "classes of objects": (Box, TWICE, THRICE, lambda cls: cls()),
    "classes": (Box, TWICE, THRICE, lambda cls: lambda x: cls()(x)),
    "functions": (Box, ONE, TWO, lambda function: function),
    "bound methods": (Box, FOUR, FIVE, lambda held: held.run),
    "objects": (Box, FOUR, FIVE, lambda held: lambda x: held.run(x)),
}


@pytest.mark.parametrize("name", NAMESAKES)
def test_things_of_one_name_are_told_apart_wherever_they_stand(name: str) -> None:
    box, a, b, made = NAMESAKES[name]
    prints = []
    for order in ((a, b, a), (a, b, b), (b, a, a), (a, a, b)):
        module = box(*map(made, order))
        assert same_as_run(module)
        prints.append(modcache.fingerprint(module))
        assert modcache.fingerprint(box(*map(made, order))) == prints[-1]
    assert len(set(prints)) == len(prints)


FIRST = lambda x: x * 2  # noqa: E731
SECOND = lambda x: x + 3  # noqa: E731
THIRD = FIRST


class CallsThree(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FIRST(SECOND(THIRD(x)))


def test_a_global_is_bound_to_another_function_that_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = CallsThree()
    assert same_as_run(module)
    monkeypatch.setattr(f"{__name__}.THIRD", SECOND)
    assert same_as_run(module)


MEMBERS = {
    "default argument": "def forward(self, x, f=a, g=b, h={}): return f(g(h(x)))",
    "static method": "f = staticmethod(a)\n  g = staticmethod(b)\n  h = staticmethod({})\n"
    "  def forward(self, x): return self.f(self.g(self.h(x)))",
    "partial": "fs = [functools.partial(f) for f in (a, b, {})]\n"
    "  def forward(self, x): return self.fs[0](self.fs[1](self.fs[2](x)))",
    "property": "f = property(lambda self: a)\n  g = property(lambda self: b)\n"
    "  h = property(lambda self: {})\n"
    "  def forward(self, x): return self.f(self.g(self.h(x)))",
}


@pytest.mark.parametrize("name", MEMBERS)
def test_what_a_class_refers_to_twice_counts_twice(name: str) -> None:
    for chosen in "ab":
        names: dict[str, Any] = {"__name__": "made"}
        source = MEMBERS[name].format(chosen)
        exec(
            "import functools\nfrom torch import nn\na = lambda x: x * 2\nb = lambda x: x + 3\n"
            f"class M(nn.Module):\n  {source}",
            names,
        )
        assert same_as_run(names["M"]())


FILE = """
import torch
def act(function):
    class Act(torch.nn.Module):
        def forward(self, x): return function(x)
    return Act
A, B = act(torch.relu), act(torch.tanh)
def scripted():
    return torch.jit.script(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2)))
"""


def fingerprint_in_order(directory: str, order: str) -> str:
    import importlib
    import sys

    sys.path.insert(0, directory)
    place = importlib.import_module("namesakes")
    torch.manual_seed(0)
    parts = [getattr(place, name)() for name in order]
    return modcache.fingerprint(nn.Sequential(*parts, place.scripted()))


def test_it_is_the_same_in_every_process(tmp_path: Path, processes: ProcessRunner) -> None:
    (tmp_path / "namesakes.py").write_text(FILE)
    here = {
        order: processes.run(fingerprint_in_order, str(tmp_path), order).value
        for order in ("ABA", "ABB")
    }
    there = {
        order: processes.run(fingerprint_in_order, str(tmp_path), order).value
        for order in ("ABB", "ABA")
    }
    assert here == there
    assert here["ABA"] != here["ABB"]


@pytest.mark.parametrize("way", ["fget", "__func__", "plain", "base"])
def test_a_member_is_replaced_again_and_again(way: str) -> None:
    """A new object may get the place in memory of one that was compared by its id."""

    class Base(nn.Module):
        @property
        def factor(self) -> Any:
            return 1.0

    class M(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            factor: Any = self.factor
            return x * (factor() if callable(factor) else factor)

    module = M()
    where: Any = Base if way == "base" else M
    functions = [(lambda *_, number=number: float(number)) for number in range(8)]
    for turn in range(24):
        function = functions[turn % 8]
        wrapped: Any = {
            "fget": property(function),
            "__func__": staticmethod(function),
            "plain": function,
            "base": property(function),
        }[way]
        where.factor = wrapped
        del wrapped
        assert same_as_run(module)


# Each makes a module M() that is reached from its own class or its own namespace.
CIRCLES = {
    "its namespace": "class M(nn.Module):\n  def forward(self, x): return helper(x)\nm = M()",
    "a closure": "def make():\n  seen = {}\n  class M(nn.Module):\n"
    "    def forward(self, x): return x * len(seen)\n  m = M()\n  seen['m'] = m\n  return m\n"
    "m = make()",
    "a class attribute": "class M(nn.Module):\n  def forward(self, x): return x * 2\n"
    "m = M()\nM.me = [m]",
    "a class in a list": "class H:\n  me = None\n  def __call__(self, x): return x\n"
    "class M(nn.Module):\n  def forward(self, x): return self.h[0](x)\nm = M()\nm.h = [H()]\n"
    "H.me = {'m': m}",
    "a property": "class M(nn.Module):\n  def forward(self, x): return x * self.k\nm = M()\n"
    "M.k = property(lambda self, m=m: 2)",
    "a default": "class M(nn.Module):\n  def forward(self, x): return x\nm = M()\n"
    "M.forward.__defaults__ = (m,)",
    "a hook": "class M(nn.Module):\n  def forward(self, x): return x\nm = M()\n"
    "m.register_forward_hook(lambda _, i, o: o * len(list(m.children())))",
    "an enum": "class K(enum.Enum):\n  A = 1\nclass M(nn.Module):\n"
    "  def forward(self, x): return x * K.A.value\nm = M()\nm.k = K.A\nK.m = property(lambda s: m)",
}


@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize("name", CIRCLES)
def test_nothing_that_was_looked_at_is_kept_alive(name: str, scope: str) -> None:
    names: dict[str, Any] = {"__name__": "made"}
    exec(
        "import enum\nfrom torch import nn\ndef helper(x): return x * 2\n" + CIRCLES[name],
        names,
    )
    for _ in range(2):
        modcache.lookup_or_run(names["m"], X, "k", scope=scope)
    module, cls = weakref.ref(names["m"]), weakref.ref(type(names["m"]))
    helper = weakref.ref(names["helper"])
    names.clear()
    del names
    gc.collect()
    assert module() is None
    assert cls() is None
    assert helper() is None


def test_a_class_that_outlives_its_module_can_go_too() -> None:
    """Another module in use has no part of it."""
    other = Box(ONE)
    modcache.lookup_or_run(other, X, "k")
    cls = activation(torch.relu)
    other.functions = [cls()]
    modcache.lookup_or_run(other, X, "k")
    other.functions = [TWO]
    modcache.lookup_or_run(other, X, "k")
    reference = weakref.ref(cls)
    del cls
    gc.collect()
    assert reference() is None
