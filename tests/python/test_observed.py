# SPDX-License-Identifier: Apache-2.0
"""A run whose result is to be stored may call no code of the user's that no look has followed."""

from __future__ import annotations

import cProfile
import functools
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import modcache
import pytest
import torch
from hits import profiled
from modcache._identity import observed
from modcache._identity.memos import _is_method
from modcache._identity.module_state import state_of
from torch import nn

X = torch.ones(3)
SCALE = 2.0


OBSERVERS = ["in Python"] if observed.guards is None else ["compiled", "in Python"]


@pytest.fixture(params=OBSERVERS, autouse=True)
def observer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in Python":
        monkeypatch.setattr(observed, "guards", None)


class Hidden(nn.Module):
    """Calls what lies where no look finds it: in a module of torch, under a computed name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return hidden_call(x)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def hidden_call(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.utils._pytree.tree_map(_Finder.find(), x)
    return result


class _Finder:
    @staticmethod
    def find() -> Callable[[torch.Tensor], torch.Tensor]:
        found: Any = torch.nn.functional.__dict__["modcache_test_hook"]
        return found  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "modcache_test_hook", twice, raising=False)


def looked_up(module: nn.Module, key: str = "k") -> torch.Tensor:
    result: torch.Tensor = modcache.lookup_or_run(module, X, key)
    return result


def test_code_that_was_not_followed_is_named_and_not_stored(counted: Any) -> None:
    module = Hidden()
    for _ in range(5):
        assert torch.equal(looked_up(module), X * 2)
    assert counted() == {"bypassed_impure": 5}
    message = state_of(module).refusal.message
    assert "its run called twice (" in message
    assert "test_observed.py:" in message
    assert "scope=" in message


def test_under_a_name_the_caller_answers_for_it(counted: Any) -> None:
    for _ in range(2):
        modcache.lookup_or_run(Hidden(), X, "k", scope="hidden@1")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_a_batch_of_rows_is_watched_too(counted: Any) -> None:
    modcache.lookup_or_run(Hidden(), X, ["a", "b", "c"])
    assert counted() == {"bypassed_impure": 3}


class Followed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logging.getLogger("test_observed").warning("running")
        return sum(self._parts(x), start=torch.zeros(3)) * SCALE

    def _parts(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        class Inner:
            def value(self) -> torch.Tensor:
                return (lambda y: y + 1)(x)

        yield from [Inner().value() for _ in range(2)]


def test_inner_functions_classes_and_generators_are_followed(counted: Any) -> None:
    for _ in range(2):
        looked_up(Followed())
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_what_a_handler_of_log_messages_does_is_no_part_of_a_run(counted: Any) -> None:
    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    seen: list[str] = []
    handler = Own()
    logging.getLogger("test_observed").addHandler(handler)
    try:
        looked_up(Followed())
    finally:
        logging.getLogger("test_observed").removeHandler(handler)
    assert seen == ["running"]
    assert counted() == {"misses": 1, "stored": 1}


def test_a_profiler_goes_on_and_comes_back() -> None:
    seen = []

    def profiler(frame: Any, event: str, argument: Any) -> None:
        seen.append((event, frame.f_code.co_name))

    with profiled(profiler):
        looked_up(Followed())
        assert sys.getprofile() is profiler
    assert ("call", "_parts") in seen


def test_under_cprofile(counted: Any) -> None:
    profile = cProfile.Profile()
    with profile:
        looked_up(Followed())
    assert counted() == {"misses": 1, "stored": 1}


def test_nothing_is_left_behind_by_a_module_that_raises() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        looked_up(Raises())
    assert sys.getprofile() is None


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Hidden()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = modcache.lookup_or_run(self.inner, x, "inner", scope="inner")
        return result + 1


def test_a_run_inside_of_a_run_is_seen_by_both(counted: Any) -> None:
    looked_up(Outer())
    assert counted() == {"bypassed_impure": 1, "misses": 1, "stored": 1}


class InThread(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(hidden_call(x)))
        thread.start()
        thread.join()
        return found[0]


def test_other_threads_are_not_seen(counted: Any) -> None:
    """docs/limits.md says so."""
    looked_up(InThread())
    assert counted() == {"misses": 1, "stored": 1}


def test_what_a_thread_of_its_own_runs_is_not_taken_for_the_run(counted: Any) -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            twice(X)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        looked_up(Followed())
    finally:
        stop.set()
        thread.join()
    assert counted() == {"misses": 1, "stored": 1}


VALUES = {"scale": 2.0}


@functools.lru_cache
def scale() -> float:
    return VALUES["scale"]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * scale()


def test_an_outdated_memo_is_not_stored_under_the_new_value(
    monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    scale.cache_clear()
    module = Scaled()
    looked_up(module)
    monkeypatch.setitem(VALUES, "scale", 3.0)
    assert torch.equal(looked_up(module), X * 2)  # as the module itself answers
    assert "call scale.cache_clear()" in state_of(module).refusal.message
    counted()
    scale.cache_clear()
    assert torch.equal(looked_up(module), X * 3)
    assert torch.equal(looked_up(Scaled()), X * 3)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    scale.cache_clear()


def test_a_value_that_comes_back_does_not_make_a_memo_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scale.cache_clear()
    module = Scaled()
    looked_up(module)
    with monkeypatch.context() as context:
        context.setitem(VALUES, "scale", 3.0)
        looked_up(module)
    looked_up(module)
    assert "cache_clear" in state_of(module).refusal.message
    scale.cache_clear()


def test_methods_are_told_from_functions() -> None:
    class Holder:
        @functools.lru_cache  # noqa: B019
        def method(self) -> None: ...

    assert _is_method(vars(Holder)["method"])
    assert not _is_method(scale)


class Collections:
    """Notes whether garbage is collected while it runs, and may run something inside."""

    def __init__(self, inner: Callable[[], object] = lambda: None) -> None:
        self.inner = inner
        self.were_on: list[bool] = []

    def __call__(self) -> None:
        self.inner()
        self.were_on.append(gc.isenabled())


@pytest.mark.parametrize("are_on", [True, False])
def test_on_a_python_that_collects_unsafely_under_a_profiler_nothing_is_collected_in_a_run(
    are_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed, "_COLLECTS_SAFELY", False)
    inner = Collections()
    outer = Collections(lambda: observed.called(inner))
    if not are_on:
        gc.disable()
    try:
        observed.called(outer)
        assert (inner.were_on, outer.were_on) == ([False], [False])
        assert gc.isenabled() == are_on
    finally:
        gc.enable()


def test_collections_go_on_after_a_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_COLLECTS_SAFELY", False)
    with pytest.raises(ZeroDivisionError):
        observed.called(lambda: 1 // 0)
    assert gc.isenabled()


def test_a_python_that_collects_safely_collects_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_COLLECTS_SAFELY", True)
    run = Collections()
    observed.called(run)
    assert run.were_on == [True]
