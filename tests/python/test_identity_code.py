# SPDX-License-Identifier: Apache-2.0
"""What the code of an eager module reaches: it is part of its identity, or the module has none."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from growth import bypassed
from modcache._code.traversal import code_of_class
from torch import nn

X = torch.linspace(1, 2, 3)


def same_as_run(module: nn.Module, input: Any = X) -> bool:
    with torch.no_grad():
        return torch.equal(modcache.lookup_or_run(module, input, "k"), module(input))


class ScaleAndShift(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        for name in ("scale", "shift"):
            getattr(self, f"register_{kind}")(name, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is not None:
            x = x * self.scale
        return x if self.shift is None else x + self.shift


@pytest.mark.parametrize("kind", ["buffer", "parameter"])
def test_tensors_and_none_that_change_places_count(kind: str) -> None:
    scaling, shifting = ScaleAndShift(kind), ScaleAndShift(kind)
    five = nn.Parameter(torch.full((3,), 5.0), requires_grad=False)
    scaling.scale = five
    shifting.shift = five
    assert same_as_run(scaling)
    assert same_as_run(shifting)


class Numbered(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        getattr(self, f"register_{kind}")("0", nn.Parameter(torch.ones(3), requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self._buffers else x


def test_a_parameter_and_a_buffer_of_the_same_name_differ() -> None:
    assert same_as_run(Numbered("parameter"))
    assert same_as_run(Numbered("buffer"))


def test_an_attribute_renamed_in_place_counts() -> None:
    module = nn.Identity()
    module.first = {"a": 1}
    before = modcache.fingerprint(module)
    del module.first
    module.second = {"a": 1}
    assert same_as_run(module)
    assert modcache.fingerprint(module) != before


class HoldsPlainTensors(nn.Module):
    """Tensors that are neither parameters nor buffers, and one that a method closes over."""

    def __init__(self, places: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.plain = places["attribute"]
        self.listed = [places["list"]]
        closed = places["closure"]
        self.act = lambda x: x * closed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) * self.plain * self.listed[0]


@pytest.mark.parametrize("place", ["attribute", "list", "closure"])
@pytest.mark.parametrize("scope", ["", "named"])
def test_a_graph_is_kept_where_any_tensor_in_reach_requires_grad(place: str, scope: str) -> None:
    places = {name: torch.ones(3) for name in ("attribute", "list", "closure")}
    module = HoldsPlainTensors(places)
    assert not modcache.lookup_or_run(module, X, "k", scope=scope).requires_grad
    places[place].requires_grad_()
    assert modcache.lookup_or_run(module, X, "k", scope=scope).requires_grad


class First(nn.Module):
    def forward(self, *parts: Any) -> torch.Tensor:
        return torch.full((2,), float(len(parts)))


REFUSED = [{1, 2}, (X, [{1, 2}]), {"a": object()}, object()]


@pytest.mark.parametrize("input", REFUSED, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("mode", ["on", "off"])
def test_an_input_without_a_type_passes_through(mode: str, input: Any, counted: Any) -> None:
    modcache.set_mode(mode)
    want = First()(*input) if isinstance(input, tuple) else First()(input)
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(First(), input, "k"), want)
    assert counted() == {"bypassed_type" if mode == "on" else "bypassed_off": 2}


def test_a_tensor_that_requires_grad_deep_in_the_input_counts() -> None:
    module = Item()
    with torch.no_grad():
        modcache.lookup_or_run(module, ([X],), "k")
    deep = X.clone().requires_grad_()
    assert modcache.lookup_or_run(module, ([deep],), "k").requires_grad


class Item(nn.Module):
    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return parts[0] * 2


HEADER = """
import functools, operator, types
import numpy as np
import torch
from growth import bypassed
from torch import nn
"""
FORWARD = "class M(nn.Module):\n  def forward(self, x): return {}\n"


def made(source: str) -> nn.Module:
    """An instance of the class M of a module of its own."""
    names: dict[str, Any] = {"__name__": "made"}
    exec(HEADER + source, names)
    return names["M"]().requires_grad_(False)


# What differs stands in for $; each pair of modules must be told apart.
DIFFERENT_CODE = {
    "static method": ("class M(nn.Module):\n  act = staticmethod(torch.$)\n  def forward(self, x):"
                      " return self.act(x)", "relu", "tanh"),
    "partial": ("class M(nn.Module):\n  act = functools.partial(torch.$)\n  def forward(self, x):"
                " return self.act(x)", "relu", "tanh"),
    "default argument": ("class M(nn.Module):\n  def forward(self, x, act=torch.$): return act(x)",
                         "relu", "tanh"),
    "partial method": ("class M(nn.Module):\n  def f(self, x, k): return x * k\n"
                       "  forward = functools.partialmethod(f, k=$)", "2", "3"),
    "global function": ("ACT = torch.$\n" + FORWARD.format("ACT(x)"), "relu", "tanh"),
    "function in a dict": ("ACT = {'a': torch.$}\n"
                           + FORWARD.format("ACT['a'](x)"), "relu", "tanh"),
    "item getter": ("GET = operator.itemgetter($)\n" + FORWARD.format("GET(x)"), "0", "1"),
    "NumPy function": ("ACT = np.$\n" + FORWARD.format("torch.from_numpy(ACT(x.numpy()))"),
                       "tanh", "exp"),
    "operator overload": ("ACT = torch.ops.aten.$.default\n" + FORWARD.format("ACT(x)"),
                          "tanh", "exp"),
    "module made in forward": ("class H(nn.Module):\n  def forward(self, x): return x * $\n"
                               + FORWARD.format("H()(x)"), "2", "3"),
    "global module": ("ACT = nn.$()\n" + FORWARD.format("ACT(x)"), "ReLU", "Tanh"),
    "global module's weights": ("LIN = nn.Linear(3, 3)\nnn.init.constant_(LIN.weight, $)\n"
                                "nn.init.zeros_(LIN.bias)\n" + FORWARD.format("LIN(x)"), "2", "3"),
    "an enum's value": ("import enum\nclass K(enum.Enum):\n  A = $\n"
                        + FORWARD.format("x * K.A.value"), "2", "3"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT_CODE)
def test_what_code_names_counts(name: str) -> None:
    source, one, two = DIFFERENT_CODE[name]
    assert modcache.fingerprint(made(source.replace("$", one))) == modcache.fingerprint(
        made(source.replace("$", one))
    )
    inputs = X - 1.5
    assert same_as_run(made(source.replace("$", one)), inputs)
    assert same_as_run(made(source.replace("$", two)), inputs)


@torch.jit.script
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.jit.script
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_scripted_functions_are_told_by_their_graph() -> None:
    assert same_as_run(Calls(double))
    assert same_as_run(Calls(triple))


# How something that forward reads is changed after the first call, from inside its globals.
CHANGES = {
    "object": ("class Cfg: pass\nCFG = Cfg()\nCFG.s = 2.\n" + FORWARD.format("x * CFG.s"),
               "CFG.s = 3."),
    "namespace": ("class M(nn.Module):\n  cfg = types.SimpleNamespace(s=2.)\n  def forward(self,"
                  " x): return x * self.cfg.s", "M.cfg.s = 3."),
    "default": ("class M(nn.Module):\n  def forward(self, x, o={'s': 2.}): return x * o['s']",
                "M.forward.__defaults__[0]['s'] = 3."),
    "closure": ("def make(lin):\n  class M(nn.Module):\n    def forward(self, x): return lin(x)\n"
                "  return M\nLIN = nn.Linear(3, 3).requires_grad_(False)\nM = make(LIN)",
                "LIN.weight.add_(1)"),
    "function attribute": ("def h(x): return x * h.s\nh.s = 2\n" + FORWARD.format("h(x)"),
                           "h.s = 3"),
    "code": (FORWARD.format("x * 2"), "M.forward.__code__ = (lambda self, x: x * 3).__code__"),
    "helper class": ("class H:\n  @staticmethod\n  def f(x): return x * 2\n"
                     + FORWARD.format("H.f(x)"), "H.f = staticmethod(lambda x: x * 3)"),
    "imported": ("CFG = types.ModuleType('cfg')\nCFG.s = 2.\n" + FORWARD.format("x * CFG.s"),
                 "CFG.s = 3."),
    "shadowed builtin": (FORWARD.format("x * abs(-2)"), "abs = lambda x: 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_code_reads_is_compared_at_every_call(name: str, counted: Any) -> None:
    source, change = CHANGES[name]
    names: dict[str, Any] = {"__name__": "made"}
    exec(HEADER + source, names)
    module = names["M"]()
    assert same_as_run(module)
    assert same_as_run(module)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    with torch.no_grad():
        exec(change, names)
    assert same_as_run(module)


UNIDENTIFIED = {
    "an import in forward": "class M(nn.Module):\n  def forward(self, x):\n    import models\n"
                            "    return x",
    "a module as a value": "CFG = types.ModuleType('c')\nCFG.s = 1\n"
                           + FORWARD.format("x * getattr(CFG, 's')"),
    "eval": FORWARD.format("eval('x')"),
    "a generator": "G = torch.Generator()\n" + FORWARD.format("x if G else x"),
    "a made ufunc": "U = np.frompyfunc(abs, 1, 1)\n" + FORWARD.format("x if U else x"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNIDENTIFIED)
def test_code_that_cannot_be_followed_identifies_nothing(name: str, counted: Any) -> None:
    module = made(UNIDENTIFIED[name])
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), X)
    assert bypassed(counted()) == {"bypassed_identity": 2}
    modcache.lookup_or_run(module, X, "k", scope="answered for")
    assert counted() == {"misses": 1, "stored": 1}


@pytest.mark.parametrize("scope", ["", "named"])
def test_a_counter_in_a_global_object_is_not_cached(scope: str, counted: Any) -> None:
    counting = "class M(nn.Module):\n  def forward(self, x):\n    S.n += 1\n    return x * S.n\n"
    module = made("S = types.SimpleNamespace(n=0)\n" + counting)
    results = [modcache.lookup_or_run(module, X, "k", scope=scope) for _ in range(2)]
    assert torch.equal(results[1], X * 2)
    assert bypassed(counted()) == {"bypassed_impure": 2}


def test_functions_of_equal_code_but_other_globals_differ() -> None:
    def function(factor: int) -> Any:
        names: dict[str, Any] = {"__name__": "made"}
        exec(f"def g(x): return x * {factor}\ndef f(x): return g(x)", names)
        return names["f"]

    module = Calls(function(2))
    assert same_as_run(module)
    module.function = function(3)
    assert same_as_run(module)


class Private:
    __slots__ = ("__value",)

    def __init__(self, value: int) -> None:
        self.__value = value


class Slotted(dict[str, int]):
    __slots__ = ("z",)

    def __init__(self, z: int) -> None:
        self.z = z


@pytest.mark.parametrize(
    "make",
    [
        Private,
        Slotted,
        lambda k: deque([1], maxlen=k),
        lambda k: np.ma.masked_array(np.ones(2), mask=[k - 2, 0]),
        lambda k: random.Random(k),
        lambda k: np.array([[1]]) if k == 2 else np.matrix([[1]]),
    ],
    ids=["private slot", "dict with slots", "deque", "masked", "random", "matrix"],
)
def test_values_with_hidden_state_are_told_apart_or_refused(make: Any) -> None:
    found = []
    for k in (2, 3):
        try:
            found.append(modcache.fingerprint(Calls(make(k))))
        except TypeError as reason:
            assert "'function' of Calls" in str(reason)  # noqa: PT017
    assert len(set(found)) == len(found)


class Asserting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x is not None
        return x + 1


def test_an_assert_that_pytest_rewrote_leads_nowhere() -> None:
    """It led to what pytest holds: the running test, and with it all others and their code."""
    assert "@pytest_ar" in Asserting.forward.__code__.co_names
    assert [value() for value in code_of_class(Asserting).packaged] == []
