# SPDX-License-Identifier: Apache-2.0
"""modcache.lazy goes wherever a module goes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from lazy_models import KINDS, SCOPE, X, encoder, encoder_file, expected, lazy_encoder
from models import Outer, frozen
from torch import nn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return encoder_file(tmp_path)


@pytest.fixture(params=KINDS)
def lazy(request: pytest.FixtureRequest, path: Path) -> modcache.Lazy:
    return lazy_encoder(request.param, path)


def test_to_and_half_and_eval_are_remembered(path: Path) -> None:
    for lazy in (modcache.lazy(path), modcache.lazy(encoder, scope=SCOPE)):
        assert lazy.to("cpu").double().half().bfloat16().double().train() is lazy
        assert not lazy.loaded
        module = lazy.load()
        assert module.training
        assert {tensor.dtype for tensor in module.parameters()} == {torch.float64}
        lazy.eval()
        assert not module.training
        lazy.float()
        assert {tensor.dtype for tensor in module.parameters()} == {torch.float32}


def test_only_a_dtype_that_was_named_changes() -> None:
    def mixed() -> nn.Module:
        return nn.ModuleList([nn.Linear(2, 2).half(), nn.Linear(2, 2)])

    module = modcache.lazy(mixed, scope=SCOPE).float().load()
    assert {tensor.dtype for tensor in module.parameters()} == {torch.float32}
    module = modcache.lazy(mixed, scope=SCOPE).to("cpu").load()
    assert {tensor.dtype for tensor in module.parameters()} == {torch.float32, torch.float16}


def test_another_dtype_is_another_scope_of_a_file(path: Path, counted: Any) -> None:
    modcache.lookup_or_run(modcache.lazy(path), X, "k")
    for _ in range(2):
        lazy = modcache.lazy(path).double()
        value = modcache.lookup_or_run(lazy, X.double(), "k")
        assert value.dtype == torch.float64
    assert not lazy.loaded
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}


def test_eval_of_what_was_saved_in_eval_is_no_other_scope(path: Path, counted: Any) -> None:
    modcache.lookup_or_run(modcache.lazy(path), X, "k")
    counted()
    modcache.lookup_or_run(modcache.lazy(path).eval(), X, "k")
    assert counted() == {"hits_memory": 1}


def test_inside_a_model_it_has_no_parameters_of_its_own(lazy: modcache.Lazy) -> None:
    model = Outer(lazy).to("cpu").train()
    names = ["head.weight", "head.bias"]
    assert list(model.state_dict()) == names
    model.eval()
    model(X, "k")
    assert lazy.loaded
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters()] == names
    model.load_state_dict(model.state_dict())


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_torch_jit_script_takes_the_module_itself(lazy: modcache.Lazy) -> None:
    model = Outer(lazy)
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(X, "k"), model(X, "k"))


def test_copies_and_pickles_load_for_themselves(path: Path) -> None:
    for lazy in (modcache.lazy(path), modcache.lazy(encoder, scope=SCOPE)):
        lazy.double().load()
        for other in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
            assert not other.loaded
            assert repr(other) == repr(lazy).replace(", loaded", ", not loaded")
            assert torch.equal(other(X.double()), lazy(X.double()))
            assert other.load() is not lazy.load()


def test_its_picture_says_whether_it_is_loaded(path: Path) -> None:
    lazy = modcache.lazy(path)
    assert repr(lazy) == f"Lazy({str(path)!r}, not loaded)"
    lazy.load()
    assert repr(lazy) == f"Lazy({str(path)!r}, loaded)"
    assert (
        repr(modcache.lazy(encoder, scope=SCOPE)) == "Lazy(encoder, scope='encoder@1', not loaded)"
    )


def test_hooks_are_the_module_s() -> None:
    lazy = modcache.lazy(encoder, scope=SCOPE)
    lazy.register_forward_hook(lambda module, arguments, output: output + 1)
    assert torch.equal(lazy(X), expected() + 1)


def test_fingerprint(path: Path) -> None:
    assert modcache.fingerprint(modcache.lazy(path)) == modcache.fingerprint(torch.jit.load(path))
    lazy = modcache.lazy(encoder, scope=SCOPE)
    assert modcache.fingerprint(lazy) == modcache.refresh_fingerprint(encoder())


def test_a_cached_module_that_holds_one_is_not_cached_without_a_scope(
    lazy: modcache.Lazy, counted: Any
) -> None:
    """Else its fingerprint would not know of a file that is replaced."""

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = lazy

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    for _ in range(2):
        modcache.lookup_or_run(Holds(), X, "k")
    assert counted() == {"bypassed_identity": 2}
    modcache.lookup_or_run(Holds(), X, "k", scope="holds@1")
    assert counted() == {"misses": 1, "stored": 1}


def test_one_that_is_not_loaded_cannot_be_recorded(lazy: modcache.Lazy) -> None:
    with pytest.raises(RuntimeError, match=r"model\.encoder = model\.encoder\.load\(\)"):
        torch.export.export(ByIds(lazy), (X, torch.tensor([1, 2])), strict=False)
    model = ByIds(lazy)
    model.encoder = frozen(encoder())
    program = torch.export.export(model, (X, torch.tensor([1, 2])), strict=False)
    assert torch.allclose(program.module()(X, torch.tensor([1, 2])), expected())


class ByIds(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids, scope=SCOPE)  # type: ignore[no-any-return]


def test_floats_that_were_rounded_on_the_way_are_rounded(path: Path) -> None:
    waiting = modcache.lazy(path).half().float()
    loaded = modcache.lazy(path)
    loaded.load()
    loaded.half().float()
    plain = modcache.lookup_or_run(modcache.lazy(path), X, "a")
    rounded = modcache.lookup_or_run(waiting, X, "a")
    assert torch.equal(rounded, modcache.lookup_or_run(loaded, X, "b"))
    assert not torch.equal(rounded, plain)
