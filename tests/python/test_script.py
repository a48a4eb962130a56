# SPDX-License-Identifier: Apache-2.0
"""The operator inside TorchScript: scripted, saved, loaded elsewhere, traced encoders inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Tuple  # noqa: UP035  (TorchScript reads it)

import modcache
import pytest
import torch
from models import (
    Doubles,
    Encoder,
    EncoderOfTwoMethods,
    Outer,
    TwoInputs,
    frozen,
    in_form,
    reloaded,
)
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class ByOperator(nn.Module):
    """Calls the operator by its own name, with every keyword."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, x, key, scope="named", method="negated")


class TupleInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = TwoInputs()

    def forward(self, x: torch.Tensor, y: torch.Tensor, key: str) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, (x, y, 3), key)


class AllOperators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ReLU()

    def forward(self, x: torch.Tensor) -> Tuple[bool, bool, torch.Tensor, int, str]:  # noqa: UP006
        before = torch.ops.cache.contains("s", "k")
        torch.ops.cache.store("s", "k", x)  # for its effect alone
        found, kept = torch.ops.cache.lookup("s", "k")
        torch.ops.cache.flush()
        stats = torch.ops.cache.stats()
        torch.ops.cache.clear("t", prefix="x")
        return before, found, kept, stats["stored"], torch.ops.cache.mode()


@pytest.mark.parametrize("encoder_face", ["scripted", "traced", "loaded"])
def test_one_source_line_serves_eager_and_scripted(encoder_face: str, counted: Any) -> None:
    encoder = in_form(frozen(Encoder()), encoder_face)
    eager = Outer(encoder)
    expected = eager.head(encoder(X))
    assert torch.equal(eager(X, "k"), expected)
    scripted = torch.jit.script(eager)
    for model in (scripted, reloaded(scripted)):
        assert torch.equal(model(X, "k"), expected)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}


def test_an_eager_encoder_in_the_same_source_line(counted: Any) -> None:
    model = Outer(frozen(Encoder()))
    expected = model.head(model.encoder(X))
    for _ in range(2):
        assert torch.equal(model(X, "k"), expected)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def run_file(path: str, x: torch.Tensor) -> tuple[list[float], dict[str, int]]:
    return torch.jit.load(path)(x, "k").flatten().tolist(), modcache.stats()


@pytest.mark.parametrize("encoder_face", ["scripted", "traced"])
def test_a_saved_model_hits_in_another_process(
    encoder_face: str, tmp_path: Path, processes: ProcessRunner
) -> None:
    model = torch.jit.script(Outer(in_form(frozen(Encoder()), encoder_face)))
    expected = model(X, "k")
    modcache.flush()
    path = str(tmp_path / "model.pt")
    model.save(path)
    values, stats = processes.run(run_file, path, X).value
    assert values == expected.flatten().tolist()
    assert (stats["hits_disk"], stats["misses"]) == (1, 0)
    values, stats = processes.run(run_file, path, X, env={"MODCACHE_MODE": "off"}).value
    assert values == expected.flatten().tolist()
    assert stats["bypassed_off"] == 1


def test_scope_and_method_inside_a_script(counted: Any) -> None:
    encoder = frozen(EncoderOfTwoMethods())
    model = torch.jit.script(ByOperator(encoder))
    for _ in range(2):
        assert torch.equal(model(X, "k"), -encoder(X))
    modcache.lookup_or_run(encoder, X, "k", scope="named", method="negated")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}


def test_a_tuple_becomes_the_arguments(counted: Any) -> None:
    model = torch.jit.script(TupleInput())
    for y in (X * 2, X * 2):
        assert torch.equal(model(X, y, "k"), (X - y) * 3)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_the_other_operators_inside_a_script() -> None:
    before, found, kept, stored, mode = torch.jit.script(AllOperators())(X)
    assert (before, found, stored, mode) == (False, True, 1, "on")
    assert torch.equal(kept, X)


def test_a_stored_value_is_what_forward_would_have_given(counted: Any) -> None:
    torch.ops.cache.store("s", "k", X * 5)
    assert torch.equal(modcache.lookup_or_run(nn.ReLU(), X, "k", scope="s"), X * 5)
    found, value = torch.ops.cache.lookup("s", "k")
    assert found
    assert torch.equal(value, X * 5)
    found, _ = torch.ops.cache.lookup("s", "unknown")
    assert not found


def test_the_head_is_trained_and_the_encoder_is_run_once() -> None:
    model = torch.jit.script(Outer(frozen(Encoder())))
    model.train()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(X, "k").square().sum().backward()
        optimizer.step()
    assert modcache.stats()["misses"] == 1
    assert modcache.stats()["hits_memory"] == 4


def test_what_a_scripted_encoder_raises_reaches_the_caller(counted: Any) -> None:
    model = torch.jit.script(Outer(frozen(Encoder())))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"mat1 and mat2|size"):
            model(torch.ones(2, 3), "k")
    assert "stored" not in counted()


def test_the_operator_refuses_what_is_no_module() -> None:
    class Plain:
        pass

    for wrong in (1, "encoder", X, Plain()):
        with pytest.raises((RuntimeError, TypeError)):
            torch.ops.cache.lookup_or_run(wrong, X, "k")


def test_hooks_of_a_scripted_module_run() -> None:
    module = Doubles()

    def times_nine(self: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output * 9

    module.register_forward_hook(times_nine)
    scripted = torch.jit.script(module)
    assert torch.equal(modcache.lookup_or_run(scripted, X, "k"), X * 18)
    assert torch.equal(modcache.lookup_or_run(scripted, X, "k"), X * 18)


def test_x_and_a_tuple_of_x_are_one_call(counted: Any) -> None:
    module = torch.jit.script(Doubles())
    modcache.lookup_or_run(module, X, "k")
    modcache.lookup_or_run(module, (X,), "k")
    assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}
