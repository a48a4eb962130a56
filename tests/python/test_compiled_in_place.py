# SPDX-License-Identifier: Apache-2.0
"""Modules that ``Module.compile`` compiled in place, before or after ``modcache.cached``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from keyed_modules import Growth
from torch import nn

X = torch.linspace(-1, 1, 24).reshape(4, 6)
KEYS = ["a", "b", "c", "d"]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x).relu()
        return result


class Backend:
    """Runs graphs as they are, and counts them. Each is compiled at its first run."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward  # type: ignore[no-any-return]


def in_block(module: Any, x: torch.Tensor) -> Any:
    with modcache.keys(KEYS):
        return module(x)


WAYS: dict[str, tuple[dict[str, Any], Callable[[Any, torch.Tensor], Any]]] = {
    "argument": ({"key": "ids"}, lambda module, x: module(x, ids=KEYS)),
    "block": ({}, in_block),
    "content": ({"key": "content"}, lambda module, x: module(x)),
}


@pytest.fixture
def backend() -> Backend:
    torch._dynamo.reset()
    return Backend()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_it_hits_and_its_misses_run_compiled(
    counted: Growth, backend: Backend, way: str, is_before: bool
) -> None:
    options, call = WAYS[way]
    encoder = Encoder().eval().requires_grad_(False)
    want = encoder(X)
    if is_before:
        encoder.compile(backend=backend)
    module = modcache.cached(encoder, **options)
    if not is_before:
        module.compile(backend=backend)
    for _ in range(3):
        torch.testing.assert_close(call(module, X), want)
    rows = 1 if way == "content" else 4
    assert counted() == {"misses": rows, "stored": rows, "hits_memory": 2 * rows}
    graphs = 1 if way == "content" else 2  # with that of the check run
    assert backend.graphs == graphs
    torch.testing.assert_close(encoder(X), want)
    assert not counted()  # the given instance is uncached
    assert backend.graphs == graphs


def test_lookup_or_run_of_a_compiled_module(counted: Growth, backend: Backend) -> None:
    encoder = Encoder().eval().requires_grad_(False)
    want = encoder(X)
    encoder.compile(backend=backend)
    for _ in range(2):
        torch.testing.assert_close(modcache.lookup_or_run(encoder, X, KEYS), want)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}
    assert backend.graphs == 2  # with that of the check run


def test_hooks_run_once_for_each_call(backend: Backend) -> None:
    encoder = Encoder().eval().requires_grad_(False)
    calls: list[str] = []
    encoder.register_forward_hook(lambda *_: calls.append("hook"))
    encoder.compile(backend=backend)
    module = modcache.cached(encoder, key="ids")
    for count in (1, 2):
        module(X, ids=KEYS)
        assert len(calls) == count


def test_a_mode_of_off_runs_compiled(counted: Growth, backend: Backend) -> None:
    encoder = Encoder().eval().requires_grad_(False)
    encoder.compile(backend=backend)
    module = modcache.cached(encoder, key="ids")
    with modcache.mode("off"):
        module(X, ids=KEYS)
    assert backend.graphs == 1
    assert counted() == {"bypassed_off": 4}


def test_copies_are_cached_and_not_compiled(counted: Growth, backend: Backend) -> None:
    encoder = Encoder().eval().requires_grad_(False)
    encoder.compile(backend=backend)
    module = copy.deepcopy(modcache.cached(encoder, key="ids"))
    for _ in range(2):
        torch.testing.assert_close(module(X, ids=KEYS), module.linear(X).relu())
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}
    assert backend.graphs == 0


def test_a_compiled_parent(counted: Growth, backend: Backend) -> None:
    model = nn.Sequential(modcache.cached(Encoder().eval().requires_grad_(False)), nn.ReLU())
    want = model[1](model[0].linear(X).relu())
    model.compile(backend=backend)
    for _ in range(2):
        torch.testing.assert_close(in_block(model, X), want)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}
