# SPDX-License-Identifier: Apache-2.0
"""Any number of threads: one run per key, no wrong value."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from models import Encoder, frozen, in_form
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs ``work(index)`` in threads that start at the same moment."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def body(index: int) -> None:
        barrier.wait()
        try:
            results[index] = work(index)
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=body, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    return results


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.eye(64)
        for _ in range(300):
            y = (y @ y).tanh()
        return x + y.sum() * 0


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_eight_threads_with_one_key_run_once(face: str) -> None:
    module = in_form(Slow(), face)
    for result in together(8, lambda _: modcache.lookup_or_run(module, X, "k")):
        assert torch.equal(result, X)
    stats = modcache.stats()
    assert (stats["misses"], stats["stored"]) == (1, 1)
    # The directory's queue has a result a moment before the memory tier does.
    assert stats["hits_memory"] + stats["hits_disk"] == 7


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_threads_with_other_keys_get_their_own_values(face: str) -> None:
    module = in_form(frozen(Encoder()), face)

    def work(index: int) -> bool:
        keys = [(index * 7 + step) % 20 for step in range(60)]
        return all(
            torch.equal(modcache.lookup_or_run(module, X * key, str(key)), module(X * key))
            for key in keys
        )

    assert together(8, work) == [True] * 8
    assert modcache.stats()["misses"] == 20


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.eye(64)
        for _ in range(100):
            y = (y @ y).tanh()
        raise ArithmeticError("too hard")


def test_when_a_run_raises_the_waiting_threads_run_themselves() -> None:
    results = together(4, lambda _: modcache.lookup_or_run(Raises(), X, "k", scope="s"))
    assert [str(result) for result in results] == ["too hard"] * 4


def test_configure_and_clear_while_others_look_up(tmp_path: Any) -> None:
    module = torch.jit.script(frozen(Encoder()))
    expected = module(X)

    def work(index: int) -> bool:
        if index == 0:
            for turn in range(30):
                modcache.configure(dir=tmp_path / f"d{turn % 3}")
                modcache.stats()
        elif index == 1:
            for _ in range(30):
                modcache.clear()
                modcache.flush()
        else:
            for turn in range(150):
                if not torch.equal(modcache.lookup_or_run(module, X, str(turn % 5)), expected):
                    return False
        return True

    assert together(5, work) == [True] * 5
    assert modcache.stats()["errors"] == 0


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_module_may_look_up_inside_its_own_run(face: str) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = in_form(frozen(Encoder()), face)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.inner, x, "k") + 1

    module = Nested()
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), module.inner(X) + 1)


def test_threads_of_a_forked_child_do_not_wait_for_those_of_its_parent() -> None:
    started, may_end = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            started.set()
            may_end.wait(20)
            return x

    parents = [
        threading.Thread(
            target=modcache.lookup_or_run, args=(Waits(), X, "k"), kwargs={"scope": "w"}
        )
        for _ in range(3)
    ]
    for thread in parents:
        thread.start()
    started.wait(20)
    child = os.fork()
    if child == 0:
        may_end.set()
        for _ in range(3):
            calls = [(nn.ReLU(), X, "k")] * 3
            threads = [threading.Thread(target=modcache.lookup_or_run, args=c) for c in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            if any(thread.is_alive() for thread in threads):
                os._exit(1)
        os._exit(0)
    may_end.set()
    for thread in parents:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_clear_makes_no_directory_and_respects_the_mode(tmp_path: Any) -> None:
    there = tmp_path / "new"
    module = torch.jit.script(nn.ReLU())
    modcache.configure(dir=there)
    assert modcache.clear() == 0
    assert not there.exists()
    modcache.lookup_or_run(module, X, "k")
    modcache.set_mode("read")
    assert modcache.clear() == 0
    modcache.set_mode("on")
    assert modcache.lookup_or_run(module, X, "k") is not None
    modcache.clear(tier="memory")
    assert modcache.lookup_or_run(module, X, "k") is not None
    assert modcache.stats()["hits_disk"] == 1
    assert modcache.clear() == 1
    assert modcache.lookup_or_run(module, X, "k") is not None
    assert modcache.stats()["misses"] == 2
