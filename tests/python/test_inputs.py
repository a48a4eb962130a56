# SPDX-License-Identifier: Apache-2.0
"""Inputs of every kind: which are cached, which are told apart, and which go by the cache."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from models import Python
from torch import nn

X = torch.linspace(-1, 1, 4)


class Describes(nn.Module):
    """Its result depends on the exact types of all that it is given."""

    def forward(self, *parts: Any) -> torch.Tensor:
        return torch.tensor([float(byte) for byte in described(parts).encode()])


def described(value: Any) -> str:
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        return f"tensor{list(value.shape)}"
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple)):
        return f"{kind}({', '.join(map(described, value))})"
    return f"{kind} {value!r}"


class Number(enum.IntEnum):
    SIX = 6
    SEVEN = 7


class Word(str, enum.Enum):  # noqa: UP042  (its str() is its name)
    A = "a"


Pair = namedtuple("Pair", "one two")

CACHED = [
    {"x": X, "n": 3},
    [X, 3],
    [3, X],
    (X, [X, 3]),
    (X, []),
    (X, {}),
    (X, [[]]),
    (X, [{}]),
    [],
    {},
    {"x": X},
    {"x": X, "n": [X, {"deep": (1, None)}]},
    {"a": X, 1: X},
    {None: X},
    (X, [1, 2.0]),
    (X, [1, 2]),
    (X, [1, True]),
    (X, (1, 2)),
    (X, Pair(1, 2)),
    (X, torch.Size([1, 2])),
    (X, [None, X]),
    (X, 6),
    (X, torch.float32),
    (X, torch.strided),
    (X, 0),
    (X, torch.preserve_format),
    (X, [torch.float32, 6]),
    (X, [6, 6]),
    (X, Number.SIX),
    (X, Number.SEVEN),
    (X, "a"),
    (X, Word.A),
    (X, b"a"),
    (X, "\udc80"),
    (X, 2**70),
    (X, 2**70 + 1),
    (X, -0.0),
    (X, 0.0),
    (X, np.float64(0.0)),
    (X, np.float32(0.0)),
    (X, np.int64(0)),
    (X, OrderedDict(a=1)),
    (X, {"a": 1}),
    (X, slice(1, 2)),
    (X, range(1, 2)),
    (X, ...),
    (X, ("modcache:list", 1, 2.0)),
    (X, ("modcache:tuple", "tests.Pair", 1, 2)),
    (X, "modcache:text"),
    (X, ("modcache:text", "modcache:text")),
]


def test_all_these_are_cached_and_no_two_share_an_entry(counted: Any) -> None:
    module = Describes()
    for _ in range(2):
        for given in CACHED:
            expected = module(*given) if isinstance(given, tuple) else module(given)
            result = modcache.lookup_or_run(module, given, "k", scope="s")
            assert torch.equal(result, expected), given
    assert counted() == {
        "misses": len(CACHED),
        "stored": len(CACHED),
        "hits_memory": len(CACHED),
    }


def local_enum() -> Any:
    class Local(enum.Enum):
        A = 1

    return Local.A


class Sub(torch.Tensor):
    pass


REFUSED = {
    "a NumPy array of dtype <U1": np.array(["a"]),
    "set": {1, 2},
    "object": object(),
    "function": described,
    "test_inputs.Sub": [X.as_subclass(Sub)],
    "collections.defaultdict": (X, defaultdict(list)),
    "a dict whose keys are tensors": ({X: 1},),
    "Local, a class that cannot be found under its name": (X, local_enum()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_type_that_stands_in_the_way_is_named(name: str, counted: Any, capfd: Any) -> None:

    class Counts(nn.Module):
        def forward(self, *parts: Any) -> torch.Tensor:
            return torch.full((2,), float(len(parts)))

    for _ in range(2):
        modcache.lookup_or_run(Counts(), REFUSED[name], "k")
    assert counted() == {"bypassed_type": 2}
    lines = [line for line in capfd.readouterr().err.splitlines() if "Counts.forward" in line]
    assert len(lines) == 1
    assert name in lines[0]


def test_a_list_that_holds_itself_goes_by() -> None:
    endless: list[Any] = [X]
    endless.append(endless)

    class First(nn.Module):
        def forward(self, parts: list[Any]) -> torch.Tensor:
            return parts[0]

    assert torch.equal(modcache.lookup_or_run(First(), endless, "k"), X)
    assert modcache.stats()["bypassed_type"] == 1


class TakesParts(nn.Module):
    def forward(self, x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        for part in parts:
            x = x + part
        return x


def test_eager_and_scripted_calls_share_what_both_can_be_given(counted: Any) -> None:
    eager, scripted = TakesParts(), torch.jit.script(TakesParts())
    for key, given in {"one": (X, [X]), "two": (X, [X, X])}.items():
        modcache.lookup_or_run(eager, given, key, scope="s")
        modcache.lookup_or_run(scripted, given, key, scope="s")
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


@pytest.mark.parametrize("scope", ["", "s"])
def test_a_scripted_module_is_cached_for_an_empty_list_too(scope: str, counted: Any) -> None:
    scripted = torch.jit.script(TakesParts())
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(scripted, (X, []), "k", scope=scope), X)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert torch.equal(modcache.lookup_or_run(scripted, (X, [X]), "k", scope=scope), X * 2)


class AddsAll(nn.Module):
    def forward(self, parts: dict[str, Any]) -> torch.Tensor:
        return parts["x"] * parts["n"]


def test_tensors_in_a_mixed_dict_have_their_shapes_and_flags_seen(counted: Any) -> None:
    module = AddsAll()
    modcache.lookup_or_run(module, {"x": X, "n": 3}, "k")
    modcache.lookup_or_run(module, {"x": torch.ones(7), "n": 3}, "k")
    assert counted()["key_conflicts"] == 1
    trained = X.clone().requires_grad_()
    for _ in range(2):
        assert modcache.lookup_or_run(module, {"x": trained, "n": 3}, "k").requires_grad


def test_a_key_that_is_an_enum_of_text_means_its_text() -> None:
    modcache.lookup_or_run(nn.Identity(), X, Word.A, scope="s")
    assert modcache.contains("s", "a")
    assert not modcache.contains("s", "Word.A")


@pytest.mark.parametrize("scope", ["", "s"])
def test_zeros_that_take_no_memory_are_zeros(scope: str, counted: Any) -> None:
    module = torch.nn.Linear(3, 2).requires_grad_(False).eval()
    zeros = torch._efficientzerotensor((2, 3))
    found = modcache.lookup_or_run(module, zeros, "k", scope=scope)
    assert torch.equal(found, modcache.lookup_or_run(module, torch.zeros(2, 3), "k", scope=scope))
    rows = modcache.lookup_or_run(module, zeros, ["a", "b"], scope=scope)
    assert torch.equal(rows, found)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 1}


class Ignores(torch.nn.Module):
    """Does not read its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2)


def test_an_input_whose_storage_was_freed_goes_by(counted: Any, capfd: Any) -> None:
    module = Ignores().eval()
    freed = torch.ones(4, 4)
    freed.untyped_storage().resize_(0)
    for scope in ("", "s") * 6:
        assert modcache.lookup_or_run(module, freed, "k", scope=scope).tolist() == [1, 1]
        assert modcache.lookup_or_run(module, freed, list("abcd"), scope=scope).tolist() == [1, 1]
    assert counted() == {"bypassed_type": 12 * 5}
    assert "without data" in capfd.readouterr().err


def _freed(x: torch.Tensor) -> torch.Tensor:
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    return freed


def test_a_result_whose_storage_was_freed_is_not_kept(counted: Any) -> None:
    module = Python(_freed)
    for _ in range(4):
        assert modcache.lookup_or_run(module, torch.ones(2, 3), "k", scope="s").shape == (2, 3)
    assert counted() == {"bypassed_type": 4}
