# SPDX-License-Identifier: Apache-2.0
"""Values in attributes of modules: each is followed exactly, or refused with a true reason."""

from __future__ import annotations

import array
import copy
import datetime
import decimal
import functools
import io
import logging
import os
import pathlib
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from modcache._identity.module_state import ModuleState, state_of
from torch import nn
from torch.torch_version import TorchVersion

with_compiled_part = pytest.mark.skipif(
    os.environ.get("MODCACHE_COMPILED_PART") == "off", reason="it makes no snapshots"
)
X = torch.ones(1, 2)


class Holder(nn.Module):
    """Holds one value, deep inside, as configurations do."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.card = {"of": [value]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Text(str):
    """Has nothing but its text."""

    __slots__ = ()


class OtherText(str):
    __slots__ = ()


class Shouting(str):
    """Says something else than it holds."""

    def __str__(self) -> str:
        return "!"


class Always(int):
    __slots__ = ()

    def __int__(self) -> int:
        return 7


class Celsius(float):
    def __init__(self, _: float) -> None:
        self.scale = "C"

    def __float__(self) -> float:
        return 0.0


class Imaginary(complex):
    __slots__ = ()


class Token(bytes):
    __slots__ = ()

    def __bytes__(self) -> bytes:
        return b""


class Unit(str):
    """Text with a slot."""

    __slots__ = ("power",)
    power: int


class Folder(type(pathlib.Path())):  # type: ignore[misc]
    """A path with an attribute."""


class Tracing(logging.Logger):
    pass


class Multiplying(functools.partial):  # type: ignore[type-arg]
    factor = 2


def unit(text: str, power: int) -> Unit:
    made = Unit(text)
    made.power = power
    return made


def celsius(degrees: float, scale: str) -> Celsius:
    made = Celsius(degrees)
    made.scale = scale
    return made


def folder(text: str, kind: str) -> Any:
    made = Folder(text)
    made.__dict__["kind"] = kind
    return made


def slices(*parts: Any) -> slice:
    return slice(*parts)


NOW = datetime.datetime(2026, 1, 2, 3, 4)
ZONE = datetime.timezone(datetime.timedelta(hours=1))
# Two values each that a module may tell apart.
DIFFERENT: list[tuple[Any, Any]] = [
    (TorchVersion("2.13.0"), TorchVersion("2.14.0")),
    (Text("a"), Text("b")),
    (Text("a"), OtherText("a")),
    (Text("a"), "a"),
    (Shouting("a"), Shouting("b")),
    (Always(1), Always(2)),
    (celsius(1.5, "C"), celsius(2.5, "C")),
    (celsius(1.5, "C"), celsius(1.5, "K")),
    (Imaginary(1j), Imaginary(2j)),
    (Token(b"a"), Token(b"b")),
    (unit("m", 1), unit("m", 2)),
    (unit("m", 1), unit("s", 1)),
    (re.compile("a"), re.compile("b")),
    (re.compile("a"), re.compile("a", re.IGNORECASE)),
    (re.compile("a"), re.compile(b"a")),
    (re.compile(Text("a")), re.compile(Text("b"))),
    (pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a")),
    (folder("a", "warm"), folder("b", "warm")),
    (folder("a", "warm"), folder("a", "cold")),
    (logging.getLogger("a"), logging.getLogger("b")),
    (Tracing("a"), Tracing("b")),
    (slices(1, 2), slices(1, 3)),
    (slices(torch.zeros(2)), slices(torch.full((2,), 1e-9))),
    (NOW, NOW.replace(minute=5)),
    (NOW.replace(tzinfo=ZONE), NOW.replace(tzinfo=datetime.UTC)),
    (NOW.date(), NOW.date().replace(day=3)),
    (NOW.time(), NOW.time().replace(minute=5)),
    (datetime.timedelta(1), datetime.timedelta(2)),
    (decimal.Decimal("1.10"), decimal.Decimal("1.1")),
    (bytearray(b"a"), bytearray(b"b")),
    (array.array("i", [1]), array.array("i", [2])),
    (array.array("i", [1]), array.array("I", [1])),
    (np.float32(1), np.float32(2)),
    (np.float32(1), np.float64(1)),
    (np.str_("a"), np.str_("b")),
    (functools.partial(int, "1"), functools.partial(int, "2")),
    (functools.lru_cache(len), functools.lru_cache(repr)),
    (Multiplying(int), functools.partial(int)),
]


@pytest.mark.parametrize(("one", "two"), DIFFERENT)
def test_a_value_is_followed_exactly(one: Any, two: Any) -> None:
    first = modcache.fingerprint(Holder(one))
    assert first != modcache.fingerprint(Holder(two))
    # Copies of paths and loggers are of Python's making, and lose what derived classes add.
    same = one if isinstance(one, (logging.Logger, Folder)) else copy.deepcopy(one)
    assert modcache.fingerprint(Holder(same)) == first
    holder = Holder(one)
    for value in (one, two, one):  # at each value until a snapshot could have been made
        holder.card["of"][0] = value
        found = {modcache.fingerprint(holder) for _ in range(6)}
        assert found == {ModuleState().look(holder).fingerprint}
        assert (found == {first}) == (value is one)


@with_compiled_part
@pytest.mark.parametrize(
    "value",
    [
        TorchVersion("2.13.0"), Text("a"), Always(1), celsius(1.5, "C"), re.compile("a"),
        pathlib.Path("a"), NOW, NOW.replace(tzinfo=ZONE), decimal.Decimal(1), np.float32(1),
        logging.getLogger("a"), slice(1, 2), slice(torch.zeros(2)), functools.partial(len),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_module_that_holds_it_is_recognized_without_a_walk(value: Any) -> None:
    holder = Holder(value)
    for _ in range(6):
        modcache.fingerprint(holder)
    known = state_of(holder).known
    assert known is not None
    assert known.tensors() is not None


CHANGED_INSIDE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "an attribute": (celsius(1.5, "C"), lambda value: setattr(value, "scale", "K")),
    "a slot": (unit("m", 1), lambda value: setattr(value, "power", 2)),
    "the class": (Text("a"), lambda value: setattr(value, "__class__", OtherText)),
    "an attribute of a path": (folder("a", "b"), lambda value: vars(value).update(kind="c")),
    "bytes": (bytearray(b"a"), lambda value: value.append(1)),
    "an array": (array.array("i", [1]), lambda value: value.append(1)),
    "a keyword": (functools.partial(int, base=2), lambda value: value.keywords.update(base=3)),
    "a tensor in a slice": (slices(torch.zeros(1)), lambda value: value.stop.add_(1)),
    "an attribute of a class": (Multiplying(int), lambda _: setattr(Multiplying, "factor", 3)),
}


@pytest.mark.parametrize(("value", "change"), CHANGED_INSIDE.values(), ids=CHANGED_INSIDE.keys())
def test_a_change_inside_is_seen(value: Any, change: Callable[[Any], Any]) -> None:
    holder = Holder(value)
    found = {modcache.fingerprint(holder) for _ in range(6)}
    change(value)
    assert modcache.fingerprint(holder) not in found
    assert modcache.fingerprint(holder) == ModuleState().look(holder).fingerprint


def test_a_class_of_text_that_the_user_wrote_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(Text("a"))
    found = {modcache.fingerprint(holder) for _ in range(6)}
    monkeypatch.setattr(Text, "upper", lambda self: "b", raising=False)
    assert modcache.fingerprint(holder) not in found


class Marker:
    """Has no state."""

    __slots__ = ()


def test_an_object_without_state_is_its_class() -> None:
    assert modcache.fingerprint(Holder(Marker())) == modcache.fingerprint(Holder(Marker()))
    assert modcache.fingerprint(Holder(Marker())) != modcache.fingerprint(Holder(Text("")))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a lock": (threading.Lock, r"a _thread\.lock belongs to this process"),
    "a lock that counts": (threading.RLock, r"RLock belongs to this process"),
    "a condition": (threading.Condition, r"RLock belongs to this process"),
    "a generator of torch": (torch.Generator, r"Generator has a random state"),
    "a generator of NumPy": (np.random.default_rng, r"Generator has a random state"),
    "a generator of Python": (random.Random, r"random\.Random has a random state"),
    "a stream": (io.BytesIO, r"_io\.BytesIO is a file or stream"),
    "an iterator": (lambda: iter([1]), r"list_iterator holds state that Python cannot see"),
    "an object": (object, r"object is told apart by its address alone"),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_followed_says_why(make: Callable[[], Any], says: str) -> None:
    holder = Holder(make())
    with pytest.raises(TypeError, match=rf"attribute 'card' of Holder .*{says}.*scope="):
        modcache.fingerprint(holder)
    assert torch.equal(modcache.lookup_or_run(holder, X, "k"), X + 1)
    assert modcache.stats()["bypassed_identity"] == 1
