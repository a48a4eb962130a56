# SPDX-License-Identifier: Apache-2.0
"""What the watch over runs does not see, as docs/limits.md has it: each test is a line of it."""

from __future__ import annotations

import concurrent.futures
import cProfile
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from look_ups import Call, X, looked_up, made_of
from modcache._identity import observed
from modcache._library.compiled_part import guards
from torch import nn


class Hidden(nn.Module):
    """Calls what no look finds: it lies in a module of torch, under a computed name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.__dict__["limits_hook"](x)
        return result


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Puts a function where ``Hidden`` calls it."""
    return lambda hook: monkeypatch.setattr(torch.nn.functional, "limits_hook", hook, raising=False)


def plain(factor: float) -> Call:
    names: dict[str, Any] = {"__name__": "limits_own"}
    exec(compile(f"def f(x): return x * {factor}", "/srv/own.py", "exec"), names)
    found: Call = names["f"]
    return found


def in_thread(factor: float) -> Any:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return functools.partial(_result_of, pool.submit, plain(factor))


def _result_of(submit: Any, call: Call, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = submit(call, x).result()
    return result


def _backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """Is no part of what a look finds, and not of the run: it is the compiler's."""
    return graph.forward


def _through(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.nn.functional.__dict__["limits_inner"](x)
    return result


class Compiled(Hidden):
    """What is hidden becomes part of the code that the compiler makes of ``_through``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert _through is not None  # so that a look finds it
        return super().forward(x)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_runs_in_the_compiler_of_torch_compile_and_the_code_that_it_made(
    is_compiled: bool, hide: Any, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    hide(torch.compile(_through, backend=_backend) if is_compiled else _through)
    for factor in (2.0, 3.0):
        monkeypatch.setattr(torch.nn.functional, "limits_inner", plain(factor), raising=False)
        for key in ("compiles in its run", "runs what was compiled"):
            assert looked_up(Compiled(), key) == (2.0 if is_compiled else factor)
        assert Compiled()(X)[0] == factor
    expected = {"misses": 2, "stored": 2, "hits_memory": 2}
    assert counted() == (expected if is_compiled else {"bypassed_impure": 4})


def scripted(factor: float) -> Any:
    return torch.jit.CompilationUnit(f"def f(x):\n    return x * {factor}\n").f


def in_c(factor: float) -> Any:
    return functools.partial(torch.mul, torch.tensor(factor))


def of_package(factor: float) -> Any:
    names: dict[str, Any] = {"__name__": "limits_package"}
    file = "/srv/site-packages/limits_package.py"
    exec(compile(f"def f(x): return x * {factor}", file, "exec"), names)
    return names["f"]


class HiddenThread(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert _result_of is not None  # so that a look finds it
        return super().forward(x)


class HiddenClosure(Hidden):
    """A look finds the code of the closure, and neither of the closures."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(made_of(1.0)(x))


UNWATCHED: dict[str, tuple[type[Hidden], Callable[[float], Any]]] = {
    "what runs on other threads": (HiddenThread, in_thread),
    "in TorchScript": (Hidden, scripted),
    "in C": (Hidden, in_c),
    "which of several closures over one and the same code": (HiddenClosure, made_of),
    "code of installed packages": (Hidden, of_package),
}


@pytest.mark.parametrize("name", UNWATCHED)
def test_the_watch_does_not_see(name: str, hide: Any, counted: Any) -> None:
    cls, make = UNWATCHED[name]
    hide(make(2.0))
    assert looked_up(cls()) == 2.0
    hide(make(3.0))
    assert cls()(X)[0] == 3.0
    assert looked_up(cls()) == 2.0
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_the_watch_sees_what_is_none_of_these(hide: Any, counted: Any) -> None:
    for factor in (2.0, 3.0):
        hide(plain(factor))
        assert looked_up(Hidden()) == factor
    assert counted() == {"bypassed_impure": 2}


def test_modules_that_are_imported_in_the_run(
    tmp_path: Path, hide: Any, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    (tmp_path / "limits_imported.py").write_text("def f(): return 2.0\nS = f()\n")
    monkeypatch.syspath_prepend(tmp_path)
    hide(functools.partial(_scaled_by_import, importlib.__dict__["import_module"]))
    try:
        assert looked_up(Importing()) == 2.0
    finally:
        del sys.modules["limits_imported"]
    assert counted() == {"misses": 1, "stored": 1}


def _scaled_by_import(load: Callable[[str], Any], x: torch.Tensor) -> torch.Tensor:
    return x * float(load("limits_imported").S)


class Importing(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert _scaled_by_import is not None  # so that a look finds it
        return super().forward(x)


class HiddenSamples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.__dict__["limits_hook"](X)
        return result


def test_the_making_of_samples_by_a_cached_dataset(hide: Any) -> None:
    for factor in (2.0, 3.0):
        hide(plain(factor))
        assert HiddenSamples()[0][0] == factor
        assert modcache.CachedDataset(HiddenSamples())[0][0] == 2.0


def test_runs_under_a_scope_of_your_own(hide: Any) -> None:
    for factor in (2.0, 3.0):
        hide(plain(factor))
        assert looked_up(Hidden(), scope="limits@1") == 2.0


@pytest.mark.parametrize("is_compiled", [False, True], ids=["in Python", "compiled"])
def test_runs_under_cprofile_where_the_package_has_no_compiled_part(
    is_compiled: bool, hide: Any, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    if is_compiled and guards is None:
        pytest.skip("has no compiled part")
    if not is_compiled:
        monkeypatch.setattr(observed, "guards", None)
    hide(plain(2.0))
    with cProfile.Profile():
        looked_up(Hidden())
    assert counted() == ({"bypassed_impure": 1} if is_compiled else {"misses": 1, "stored": 1})
