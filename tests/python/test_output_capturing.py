# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that install hooks at the first call that asks for hidden states."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from torch import nn

Growth = Callable[[], dict[str, int]]
X = torch.ones(2, 4)
ONCE, ON_DISK = {"misses": 2, "stored": 2}, {"hits_disk": 2}
NAME = "transformers.utils.output_capturing"
PACKAGE = '''
import functools
import types

import torch

collected = []


def install(layer):
    def output_capturing_hook(module, args, output):
        collected.append(output)

    layer.register_forward_hook(output_capturing_hook)


def maybe_install_capturing_hooks(model):
    if not getattr(model, "_output_capturing_hooks_installed", False):
        for layer in model.layers:
            install(layer)
        model._output_capturing_hooks_installed = True


def capture_outputs(function):
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        asked = kwargs.pop("output_hidden_states", self.config.output_hidden_states)
        if asked:
            maybe_install_capturing_hooks(self)
        collected.clear()
        output = function(self, *args, **kwargs)
        return (output, *collected) if asked else (output,)

    return wrapper


class Model(torch.nn.Module):
    """Has the form of transformers.BertModel."""

    def __init__(self, asks=False):
        super().__init__()
        self.config = types.SimpleNamespace(output_hidden_states=asks)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])

    @capture_outputs
    def forward(self, x, **kwargs):
        for layer in self.layers:
            x = layer(x)
        return x


class Head(torch.nn.Module):
    """Has the form of transformers.T5EncoderModel, which asks the stack that it holds."""

    def __init__(self, asks=False):
        super().__init__()
        self.stack = Model(asks)
        self.config = self.stack.config

    def forward(self, x, **kwargs):
        return self.stack(x, **kwargs)
'''


class Tower(nn.Module):
    """The user's own, which takes the last but one of the hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, output_hidden_states=True)[-2]  # type: ignore[no-any-return]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package with what modcache knows of the real one."""
    file = tmp_path / "site-packages" / "transformers" / "utils" / "output_capturing.py"
    file.parent.mkdir(parents=True)
    file.write_text(PACKAGE)
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, NAME, made)
    spec.loader.exec_module(made)
    return made


def frozen(kind: Any, *args: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args, **more).requires_grad_(False).eval()


def has_hooks(model: Any) -> bool:
    return any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize("name", ["Model", "Head"])
def test_the_first_call_is_kept(
    name: str, package: Any, counted: Growth, reopen: Callable[[], None]
) -> None:
    kind = getattr(package, name)
    want = frozen(kind)(X, output_hidden_states=True)
    for expected in (ONCE, ON_DISK):
        model = frozen(kind)
        before = modcache.fingerprint(model)
        call = modcache.cached(model, key="ids")
        found = call(X, output_hidden_states=True, ids=[1, 2])
        assert all(map(torch.equal, found, want))
        assert len(found) == 3
        assert counted() == expected
        assert modcache.fingerprint(model) == before
        assert len(call(X, ids=[1, 2])) == 1, "the hooks, where they are, say nothing"
        reopen()
        counted()


def test_the_first_call_of_a_tower_of_the_user_s_is_kept(
    package: Any, counted: Growth, reopen: Callable[[], None]
) -> None:
    want = Tower(frozen(package.Model))(X)
    for expected, status in ((ONCE, "miss"), (ON_DISK, "hit")):
        tower = Tower(frozen(package.Head))
        assert modcache.explain(tower, X, [1, 2]).status == status
        assert torch.equal(modcache.cached(tower, key="ids")(X, ids=[1, 2]), want)
        assert counted() == expected
        reopen()
        counted()


def test_a_setting_of_the_model_asks_too(package: Any, counted: Growth) -> None:
    model = frozen(package.Model, asks=True)
    for _ in range(2):
        assert len(modcache.lookup_or_run(model, X, "k")) == 3
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_a_call_that_does_not_ask_installs_nothing(package: Any, counted: Growth) -> None:
    model = frozen(package.Model, asks=True)
    call = modcache.cached(model, key="ids")
    for _ in range(2):
        assert len(call(X, output_hidden_states=False, ids=[1, 2])) == 1
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}
    assert not has_hooks(model)


def test_hooks_count_for_code_of_the_user_s_that_looks_at_hooks(
    package: Any, counted: Growth
) -> None:
    class Own(package.Model):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
            scale = 2.0 if self.layers[0]._forward_hooks else 1.0
            return super().forward(x * scale, **kwargs)

    plain, model = frozen(Own, asks=True), frozen(Own, asks=True)
    for expected in ({"bypassed_impure": 1}, {"misses": 1, "stored": 1}, {"hits_memory": 1}):
        found = modcache.lookup_or_run(model, X, "k")
        assert all(map(torch.equal, found, plain(X)))
        assert counted() == expected


@pytest.mark.parametrize("name", ["output_capturing_hook", "own"])
def test_other_hooks_count(name: str, package: Any, counted: Growth) -> None:
    model = frozen(package.Model)
    before = modcache.fingerprint(model)

    def double(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2

    double.__name__ = name
    model.layers[0].register_forward_hook(double)
    assert modcache.fingerprint(model) != before
    call = modcache.cached(model, key="ids")
    for _ in range(2):
        want = model(X, output_hidden_states=True)
        found = call(X, output_hidden_states=True, ids=[1, 2])
        assert all(map(torch.equal, found, want))
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


def test_the_real_one(counted: Growth, reopen: Callable[[], None]) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip(NAME)
    bert = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    t5 = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2, vocab_size=9)
    ids = torch.arange(8).reshape(2, 4)
    for kind, config in (
        (transformers.BertModel, bert),
        (transformers.BertForMaskedLM, bert),
        (transformers.T5EncoderModel, t5),
    ):
        for expected in (ONCE, ON_DISK):
            call = modcache.cached(frozen(kind, config), key="ids")
            assert len(call(ids, output_hidden_states=True, ids=[1, 2]).hidden_states) == 3
            assert counted() == expected
            reopen()
            counted()
