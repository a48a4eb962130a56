# SPDX-License-Identifier: Apache-2.0
"""A clear while a module runs: what it computed is handed out, and stored by no form of call."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from processes import PROGRAM
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
SCOPE = "cleared"


def during_run() -> None:
    """What happens while a module runs; tests exchange it."""


@torch.library.custom_op("modcache_test::running", mutates_args=())
def running(x: torch.Tensor) -> torch.Tensor:
    during_run()
    return 2 * x


@running.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Running(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.modcache_test.running(x)


class Served(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Running()

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, x, ids, scope="cleared")


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return running(X)


def eager() -> Callable[[], Any]:
    return lambda: modcache.lookup_or_run(Running(), X, "k", scope=SCOPE)


def rows() -> Callable[[], Any]:
    return lambda: modcache.lookup_or_run(Running(), X, torch.arange(2), scope=SCOPE)


def tuples() -> Callable[[], Any]:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return running(x), x

    return lambda: modcache.lookup_or_run(Pair(), X, "k", scope=SCOPE)


def scripted() -> Callable[[], Any]:
    model = torch.jit.script(Served())
    return lambda: model(X, torch.arange(2))


def frozen() -> Callable[[], Any]:
    model = modcache.freeze(torch.jit.script(Served().eval()))
    return lambda: model(X, torch.arange(2))


def exported() -> Callable[[], Any]:
    class Exported(Served):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.encoder, x, ids, scope=SCOPE)

    with torch.no_grad():
        program = torch.export.export(Exported(), (X, torch.arange(2))).module()
    return lambda: program(X, torch.arange(2))


def of_function(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.modcache_test.running(x)


def function() -> Callable[[], Any]:
    wrapped = modcache.cached(of_function, key=lambda x: "k", scope=SCOPE)
    return lambda: wrapped(X)


def dataset() -> Callable[[], Any]:
    samples = modcache.CachedDataset(Samples(), scope=SCOPE)
    return lambda: samples[0]


def clear_here() -> None:
    modcache.clear(SCOPE)


def clear_all_here() -> None:
    modcache.clear()


def clear_elsewhere() -> None:
    directory = modcache.settings()["dir"]
    subprocess.run([PROGRAM, "clear", directory], check=True, timeout=60)


FORMS = [eager, rows, tuples, scripted, frozen, exported, function, dataset]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize(
    "clear", [clear_here, clear_all_here, clear_elsewhere], ids=lambda clear: clear.__name__
)
def test_its_result_is_not_stored(
    form: Callable[[], Callable[[], Any]],
    clear: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = form()
    runs: list[int] = []

    def clear_once() -> None:
        runs.append(1)
        if len(runs) == before + 1:
            clear()

    call()  # a first call may check whether rows are independent
    modcache.flush()
    modcache.clear(SCOPE)
    monkeypatch.setitem(globals(), "during_run", clear_once)
    before = 0
    call()
    modcache.flush()
    after_clear = len(runs)
    assert after_clear > 0
    call()
    assert len(runs) > after_clear  # nothing was found
    modcache.flush()
    before_hit = len(runs)
    call()
    assert len(runs) == before_hit


def test_a_clear_that_the_mode_forbids_leaves_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    call = eager()

    def clear_in_mode_read() -> None:
        with modcache.mode("read"):
            modcache.clear(SCOPE)

    monkeypatch.setitem(globals(), "during_run", clear_in_mode_read)
    call()
    call()
    assert modcache.stats()["misses"] == 1


class Mixed(nn.Module):
    """Its rows depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_what_a_run_showed_of_rows_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "during_run", lambda: modcache.clear(SCOPE))
    with torch.no_grad():
        modcache.lookup_or_run(Running(), X, ["a", "b"], scope=SCOPE)
        mixed = modcache.lookup_or_run(Mixed(), X, ["c", "d"], scope=SCOPE)
    assert torch.equal(mixed, Mixed()(X))
    assert modcache.stats()["bypassed_rows"] == 2
