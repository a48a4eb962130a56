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

Growth = Callable[[], dict[str, int]]
X = torch.ones(2, 4)
NAME = "transformers.utils.output_capturing"
PACKAGE = '''
import functools
import types

import torch

collected = []


class Registry:
    def get(self, model):
        return {"hidden_states": None}


_CAN_RECORD_REGISTRY = Registry()


def hook(module, args, output):
    collected.append(output)


def maybe_install_capturing_hooks(model):
    if not getattr(model, "_output_capturing_hooks_installed", False):
        for layer in model.layers:
            layer.register_forward_hook(hook)
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

    base_model_prefix = "model"

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
    """Has the form of transformers.BertForSequenceClassification."""

    base_model_prefix = "model"

    def __init__(self, asks=False):
        super().__init__()
        self.model = Model(asks)
        self.config = self.model.config

    def forward(self, x, **kwargs):
        return self.model(x, **kwargs)


class Outer(torch.nn.Module):
    """Has the form of transformers.T5EncoderModel, whose stack is no base model of it."""

    base_model_prefix = "transformer"

    def __init__(self, asks=False):
        super().__init__()
        self.encoder = Model(asks)
        self.config = self.encoder.config

    def forward(self, x, **kwargs):
        return self.encoder(x, **kwargs)
'''


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


def frozen(kind: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    return kind(**more).requires_grad_(False).eval()


def has_hooks(model: Any) -> bool:
    return any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize("name", ["Model", "Head", "Outer"])
def test_the_first_call_is_kept(
    name: str, package: Any, counted: Growth, reopen: Callable[[], None]
) -> None:
    kind = getattr(package, name)
    want = frozen(kind)(X, output_hidden_states=True)
    for expected in ({"misses": 2, "stored": 2}, {"hits_disk": 2}):
        model = frozen(kind)
        call = modcache.cached(model, key="ids")
        found = call(X, output_hidden_states=True, ids=[1, 2])
        assert all(map(torch.equal, found, want))
        assert len(found) == 3
        assert counted() == expected
        assert has_hooks(model), "as a run would have left it"
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
    before = modcache.fingerprint(model)
    for _ in range(2):
        assert len(call(X, output_hidden_states=False, ids=[1, 2])) == 1
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}
    assert not has_hooks(model)
    assert modcache.fingerprint(model) == before


def test_code_of_the_user_s_that_runs_before_sees_no_hooks(package: Any) -> None:
    class Own(package.Model):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
            scale = 2.0 if self.layers[0]._forward_hooks else 1.0
            return super().forward(x * scale, **kwargs)

    plain, model = frozen(Own, asks=True), frozen(Own, asks=True)
    for _ in range(2):
        found = modcache.lookup_or_run(model, X, "k")
        assert all(map(torch.equal, found, plain(X)))


@pytest.mark.parametrize("name", ["Model", "Head", "Outer"])
def test_no_hooks_where_nobody_asks(name: str, package: Any, counted: Growth) -> None:
    model = frozen(getattr(package, name))
    modcache.cached(model, key="ids")(X, ids=[1, 2])
    assert counted() == {"misses": 2, "stored": 2}
    assert not has_hooks(model)


def test_the_real_one(counted: Growth) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip(NAME)
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    ids = torch.arange(8).reshape(2, 4)
    for kind in (transformers.BertModel, transformers.BertForMaskedLM):
        model = kind(config).requires_grad_(False).eval()
        call = modcache.cached(model, key="ids")
        for expected in ({"misses": 2, "stored": 2}, {"hits_memory": 2}):
            assert len(call(ids, output_hidden_states=True, ids=[1, 2]).hidden_states) == 3
            assert counted() == expected
