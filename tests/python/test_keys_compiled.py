# SPDX-License-Identifier: Apache-2.0
"""Blocks of modcache.keys and compilers: nothing is recorded with the keys of a block."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from keyed_modules import IDS, Growth, Pipeline, X, Y, held, plain, tower
from torch import nn


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch.compiler.reset()


def test_torch_compile_leaves_it_to_eager_mode(counted: Growth) -> None:
    pipeline = Pipeline(tower())
    compiled = torch.compile(pipeline, backend="eager")
    with torch.no_grad():
        for ids, values in ((IDS, X), (IDS + 3, Y), (IDS, X), (IDS + 3, Y)):
            with modcache.keys(ids):
                assert torch.allclose(compiled(values), plain(pipeline, values))
    grown = counted()
    assert (grown["misses"], grown["hits_memory"]) == (6, 6)
    assert torch.allclose(compiled(X), plain(pipeline, X))
    assert counted()["bypassed_type"] == 1


def test_a_block_inside_compiled_code_holds_there(counted: Growth) -> None:
    pipeline = Pipeline(tower())

    @torch.compile(backend="eager")
    def step(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        with modcache.keys(ids):
            return pipeline(values + 1)  # type: ignore[no-any-return]

    with torch.no_grad():
        for ids, values in ((IDS, X), (IDS + 3, Y), (IDS, X), (IDS + 3, Y)):
            assert torch.allclose(step(values, ids), plain(pipeline, values + 1))
    grown = counted()
    assert (grown["misses"], grown["hits_memory"]) == (6, 6)
    assert held() is None


def test_a_full_graph_is_refused() -> None:
    compiled = torch.compile(Pipeline(tower()), backend="eager", fullgraph=True)
    with modcache.keys(IDS), pytest.raises(Exception, match=r"modcache\.keys"):
        compiled(X)


@pytest.mark.parametrize("strict", [True, False])
def test_an_export_is_refused(strict: bool) -> None:
    pipeline = Pipeline(tower()).eval()
    with modcache.keys(IDS), pytest.raises(Exception, match=r"without a key cannot be exported"):
        torch.export.export(pipeline, (X,), strict=strict)


def test_a_trace_has_the_plain_module() -> None:
    pipeline = Pipeline(tower()).eval()
    with modcache.keys(IDS):
        traced = torch.jit.trace(pipeline, X)
    assert torch.allclose(traced(Y), plain(pipeline, Y))


def test_torchscript_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a block of modcache\.keys gives"):
        torch.jit.script(Pipeline(tower()))


def test_a_float_argument_may_change_between_calls() -> None:
    class Scales(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x * scale

    module = modcache.cached(Scales().eval(), key="ids")
    ids, x = torch.tensor([1, 2, 3]), torch.ones(3, 2)
    torch._dynamo.reset()
    step = torch.compile(lambda scale: module(x, scale=scale, ids=ids), backend="eager")
    for scale in (2.0, 3.0, 4.0, 1.0):
        assert torch.equal(step(scale), x * scale)


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
@pytest.mark.parametrize("key", ["content", modcache.content_keys])
def test_content_is_a_key_in_a_compiled_function(key: Any) -> None:
    module = modcache.cached(nn.Linear(2, 2), key=key, freeze=True)
    x = torch.ones(3, 2)
    torch._dynamo.reset()
    step = torch.compile(module, backend="eager")
    for _ in range(2):
        assert torch.equal(step(x), nn.functional.linear(x, module.weight, module.bias))
