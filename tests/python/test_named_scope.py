# SPDX-License-Identifier: Apache-2.0
"""With ``scope=`` nothing is looked at for identity; the rules of purity and gradients stay."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from keyed_modules import Growth
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
_PACKAGE = str(Path(modcache.__file__).parent)

_SOURCE = """
import torch

class Touched:
    def __getattribute__(self, name):
        raise AssertionError(f"looked at {{name}}")

held = Touched()

{helpers}

class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.double = False

    def forward(self, x):
        if self.double:
            x = held.cast(helper_0(x))
        return self.linear(x)
"""


def made_of(count: int, folder: Path) -> nn.Module:
    """Makes a module whose forward reaches ``count`` functions, and an object that must be left."""
    last = count - 1
    helpers = "\n".join(
        f"def helper_{n}(x):\n    return {f'helper_{n + 1}' if n < last else 'torch.abs'}(x) + {n}"
        for n in range(count)
    )
    path = folder / f"made_of_{count}.py"
    path.write_text(_SOURCE.format(helpers=helpers))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    made: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    module: nn.Module = made.Module()
    return module.eval().requires_grad_(False)


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Counts the calls of Python functions of modcache."""
    count = [0]

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            count[0] += 1

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)


_opened: list[str] = []
_is_noting = [False]


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    if _is_noting[0] and event in ("open", "import"):
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_open)


@contextmanager
def noted_opens() -> Iterator[list[str]]:
    """Notes which files Python opens, and which modules it imports."""
    _opened.clear()
    _is_noting[0] = True
    try:
        yield _opened
    finally:
        _is_noting[0] = False


@pytest.mark.parametrize("is_grad_enabled", [False, True])
def test_the_cost_does_not_depend_on_the_code(tmp_path: Path, is_grad_enabled: bool) -> None:
    def calls_of(count: int) -> list[int]:
        module = made_of(count, tmp_path)
        found = []
        with torch.set_grad_enabled(is_grad_enabled):
            for row in range(5):
                with counted_calls() as calls:
                    modcache.lookup_or_run(module, X, f"{row}", scope=f"made of {count}@1")
                found.append(calls[0])
        return found

    calls_of(2)  # what is made at a first use
    assert calls_of(3) == calls_of(300)


def test_no_file_is_read_and_no_global_is_looked_at(tmp_path: Path) -> None:
    module = made_of(4, tmp_path)
    cached = modcache.cached(module, key="ids", scope="module@1")
    lookup = modcache.lookup_or_run
    lookup(made_of(5, tmp_path), X, "warm", scope="other@1")
    with noted_opens() as opened:
        for row in range(4):
            cached(X, ids=[2 * row, 2 * row + 1])
    assert opened == []
    with pytest.raises(TypeError, match="looked at"):  # identity looks at it, so the test is one
        torch.no_grad()(modcache.fingerprint)(made_of(6, tmp_path))


# What a run changes.


class Counts(nn.Module):
    """Returns how often it ran, which it keeps in a place of the subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.set_up()

    def set_up(self) -> None:
        raise NotImplementedError

    def count(self) -> float:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.count()


class InNumber(Counts):
    def set_up(self) -> None:
        self.calls = 0

    def count(self) -> float:
        self.calls += 1
        return self.calls


class InDeepDict(Counts):
    def set_up(self) -> None:
        self.held: Any = {"a": [{"calls": 0}]}

    def count(self) -> float:
        self.held["a"][0]["calls"] += 1
        return float(self.held["a"][0]["calls"])


class InObject(Counts):
    def set_up(self) -> None:
        self.held: Any = type("Held", (), {})()
        self.held.calls = 0

    def count(self) -> float:
        self.held.calls += 1
        return float(self.held.calls)


class InArray(Counts):
    def set_up(self) -> None:
        self.held = np.zeros(3)

    def count(self) -> float:
        self.held[1] += 1
        return float(self.held[1])


class InTensor(Counts):
    def set_up(self) -> None:
        self.held = torch.zeros(1)

    def count(self) -> float:
        self.held += 1
        return float(self.held)


class InGlobal(Counts):
    def set_up(self) -> None:
        globals()["_calls"] = 0

    def count(self) -> float:
        global _calls
        _calls += 1
        return float(_calls)


class InGlobalObject(Counts):
    def set_up(self) -> None:
        _object.calls = 0

    def count(self) -> float:
        _object.calls += 1
        return float(_object.calls)


class InGlobalDict(Counts):
    def set_up(self) -> None:
        _dict["calls"] = 0

    def count(self) -> float:
        _dict["calls"] += 1
        return float(_dict["calls"])


def in_closure() -> nn.Module:
    calls = 0

    class InClosure(Counts):
        def set_up(self) -> None:
            pass

        def count(self) -> float:
            nonlocal calls
            calls += 1
            return float(calls)

    return InClosure()


class InSubmodule(Counts):
    def set_up(self) -> None:
        self.inner = InNumber()

    def count(self) -> float:
        return self.inner.count()


_calls = 0
_object = SimpleNamespace(calls=0)
_dict = {"calls": 0}
COUNTING: list[Callable[[], nn.Module]] = [
    *(InNumber, InDeepDict, InObject, InArray, InTensor, in_closure, InSubmodule),
    *(InGlobal, InGlobalObject, InGlobalDict),
]


@pytest.mark.parametrize("make", COUNTING)
@pytest.mark.parametrize("is_grad_enabled", [False, True])
def test_a_module_that_counts_its_calls_is_not_cached(
    counted: Growth, make: Callable[[], nn.Module], is_grad_enabled: bool
) -> None:
    module = make()
    with torch.set_grad_enabled(is_grad_enabled):
        for call in range(1, 7):
            assert torch.equal(modcache.lookup_or_run(module, X, "k", scope="counts@1"), X + call)
    assert counted() == {"bypassed_impure": 6}


def test_statistics_that_move_are_a_change(counted: Growth) -> None:
    module = nn.BatchNorm1d(4).requires_grad_(False)
    for _ in range(6):
        modcache.lookup_or_run(module, X, "k", scope="norm@1")
    assert counted() == {"bypassed_impure": 6}


def test_gradients(counted: Growth) -> None:
    module = nn.Linear(4, 4)
    for _ in range(3):
        assert modcache.lookup_or_run(module, X, "k", scope="linear@1").requires_grad
    assert counted() == {"bypassed_grad": 3}
    module.requires_grad_(False)
    for _ in range(5):
        assert not modcache.lookup_or_run(module, X, "k", scope="linear@1").requires_grad
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 4}
    module.bias.requires_grad_(True)
    for _ in range(3):
        assert modcache.lookup_or_run(module, X, "k", scope="linear@1").requires_grad
    assert counted() == {"bypassed_grad": 3}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = {"scale": torch.ones(1)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.held["scale"]


def test_a_tensor_in_an_attribute_that_requires_grad() -> None:
    module = Scaled()
    for _ in range(5):
        modcache.lookup_or_run(module, X, "k", scope="scaled@1")
    module.held["scale"].requires_grad_(True)
    assert modcache.lookup_or_run(module, X, "k", scope="scaled@1").requires_grad


def test_calls_with_and_without_a_scope_alternate(counted: Growth) -> None:
    module = nn.Linear(4, 4).requires_grad_(False)
    for weight in range(3):
        module.weight.fill_(weight)
        for _ in range(8):
            modcache.lookup_or_run(module, X, f"{weight}", scope="both@1")
            found = modcache.lookup_or_run(module, X, "k")
            assert torch.equal(found, module(X))
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 42}
