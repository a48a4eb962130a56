# SPDX-License-Identifier: Apache-2.0
"""Two hundred threads ask for one new key at once, as requests of a server do."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

import threading
import time
from typing import Any

import modcache
import pytest
import torch
from models import in_form
from test_threads import together
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
THREADS = 200
SCOPE = "burst@1"


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.eye(64)
        for _ in range(2000):
            y = (y @ y).tanh()
        return x + y.sum() * 0


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.eye(64)
        for _ in range(200):
            y = (y @ y).tanh()
        if bool(y.sum() < 1e9):
            raise RuntimeError("too hard")
        return x


class Gate:
    """What runs of ``Waits`` come to: the first one hangs there until it is let go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.may_end = threading.Event()
        self.may_end.set()
        self.runs = 0

    def hang_first(self) -> None:
        self.runs = 0
        self.may_end.clear()

    def enter(self) -> None:
        with self.lock:
            self.runs += 1
            is_first = self.runs == 1
        if is_first:
            assert self.may_end.wait(60)


GATE = Gate()


@torch.library.custom_op("burst::enter", mutates_args=())
def enter(x: torch.Tensor) -> torch.Tensor:
    GATE.enter()
    return x.clone()


class Waits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.burst.enter(x) * 2


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_it_runs_once(face: str) -> None:
    module = in_form(Slow(), face)
    for result in together(THREADS, lambda _: modcache.lookup_or_run(module, X, "k")):
        assert torch.equal(result, X)
    stats = modcache.stats()
    assert (stats["misses"], stats["stored"]) == (1, 1)


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_each_request_fails_as_the_module_does_and_soon(face: str) -> None:
    module = in_form(Fails(), face)
    started = time.monotonic()
    with pytest.raises((RuntimeError, torch.jit.Error), match="too hard"):
        module(X)
    run_s = time.monotonic() - started
    started = time.monotonic()
    for result in together(THREADS, lambda _: modcache.lookup_or_run(module, X, "k")):
        assert isinstance(result, (RuntimeError, torch.jit.Error)), result
        assert "too hard" in str(result)
    # They share two cores, on which all runs take half of their sum; other work may be on them.
    assert time.monotonic() - started < 10 + 3 * THREADS * run_s
    assert modcache.stats()["stored"] == 0


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_while_one_run_hangs_the_other_requests_are_answered(face: str) -> None:
    module = in_form(Waits(), face)
    # So that it is known how long a run takes.
    modcache.lookup_or_run(module, X, "usual", scope=SCOPE)
    assert modcache.stats()["stored"] == 1
    GATE.hang_first()
    answered: list[float] = []
    started = time.monotonic()

    def ask(_: int) -> Any:
        result = modcache.lookup_or_run(module, X, "k", scope=SCOPE)
        answered.append(time.monotonic() - started)
        if len(answered) == THREADS - 1:
            GATE.may_end.set()
        return result

    for result in together(THREADS, ask):
        assert torch.equal(result, X * 2)
    assert len(answered) == THREADS
    assert GATE.runs == 2
    assert answered[-2] < 20, "a second of patience, and what the machine is busy with"
