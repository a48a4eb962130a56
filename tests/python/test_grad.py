# SPDX-License-Identifier: Apache-2.0
"""Results that require grad are never kept; what comes from the cache works in a backward."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from models import in_form, set_requires_grad
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Trainable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()


class TrainableEager(Trainable):
    pass


class TrainableScripted(Trainable):
    pass


class TrainableLater(Trainable):
    pass


class TrainableStrict(Trainable):
    pass


@pytest.mark.parametrize(
    ("face", "make"), [("eager", TrainableEager), ("scripted", TrainableScripted)]
)
def test_a_result_that_requires_grad_is_not_kept(
    face: str, make: Any, counted: Any, capfd: Any
) -> None:
    module = in_form(make(), face)
    for _ in range(3):
        result = modcache.lookup_or_run(module, X, "k")
        assert result.requires_grad
        result.sum().backward()
        assert module.linear.weight.grad is not None
    assert bypassed(counted()) == {"bypassed_grad": 3}
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "modcache" in line]
    assert make.__name__ in line
    assert "2 tensors" in line or "2 parameters" in line  # weight and bias
    assert "requires_grad_(False)" in line
    assert "no_grad" in line


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_an_input_that_requires_grad_gives_a_result_that_does(face: str) -> None:
    module = in_form(TrainableLater().requires_grad_(False), face)
    modcache.lookup_or_run(module, X, "k")
    x = X.clone().requires_grad_()
    for _ in range(2):
        result = modcache.lookup_or_run(module, x, "k")
        assert result.requires_grad
        result.sum().backward()
        assert x.grad is not None
    assert not modcache.lookup_or_run(module, X, "k").requires_grad


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_freezing_a_module_later_makes_it_cacheable(face: str, counted: Any) -> None:
    module = in_form(TrainableLater(), face)
    assert modcache.lookup_or_run(module, X, "k").requires_grad
    set_requires_grad(module, False)
    for _ in range(2):
        assert not modcache.lookup_or_run(module, X, "k").requires_grad
    assert bypassed(counted()) == {"bypassed_grad": 1, "stored": 1, "hits_memory": 1}
    set_requires_grad(module, True)
    assert modcache.lookup_or_run(module, X, "k").requires_grad


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_no_grad_outside_makes_it_cacheable(face: str, counted: Any) -> None:
    module = in_form(TrainableLater(), face)
    with torch.no_grad():
        for _ in range(2):
            modcache.lookup_or_run(module, X, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


class CuredEager(nn.Linear):
    pass


class CuredScripted(nn.Linear):
    pass


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_the_cure_in_the_warning_works_after_runs_with_gradients(
    face: str, counted: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    # Each class is warned about once.
    m: Any = CuredEager(4, 4).eval() if face == "eager" else torch.jit.script(CuredScripted(4, 4))
    for _ in range(3):
        modcache.lookup_or_run(m, X, "k")
    cure = capfd.readouterr().err.partition("say so: ")[2].partition("\n")[0]
    assert modcache.explain(m, X, "k").reason.partition("say so: ")[2] in cure
    if face == "eager":
        assert cure == "m.requires_grad_(False).eval(), or call it under torch.no_grad()"
        m.requires_grad_(False).eval()
    else:
        assert cure.startswith("for p in m.parameters(): p.requires_grad_(False), then m.eval()")
        for p in m.parameters():
            p.requires_grad_(False)
        m.eval()
    counted()
    for _ in range(3):
        assert not modcache.lookup_or_run(m, X, "k").requires_grad
    assert bypassed(counted()) == {"stored": 1, "hits_memory": 2}


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_strict_makes_it_an_error(face: str) -> None:
    modcache.configure(strict=True)
    module = in_form(TrainableStrict(), face)
    with pytest.raises(RuntimeError, match="requires grad"):
        modcache.lookup_or_run(module, X, "k")


@pytest.mark.parametrize("from_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("guard", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_what_was_stored_under_a_guard_works_in_a_backward(
    face: str, guard: Any, from_disk: bool, reopen: Any
) -> None:
    module = in_form(Trainable().requires_grad_(False), face)
    with guard():
        modcache.lookup_or_run(module, X, "k")
    if from_disk:
        reopen()
    head = nn.Linear(4, 2)
    for _ in range(2):
        features = modcache.lookup_or_run(module, X, "k")
        assert not features.is_inference()
        assert not features.requires_grad
        head(features).square().sum().backward()
    assert head.weight.grad is not None
    assert modcache.stats()["misses"] == 1


def test_a_hit_under_inference_mode_does_not_spoil_later_ones() -> None:
    module = torch.jit.script(Trainable().requires_grad_(False))
    modcache.lookup_or_run(module, X, "k")
    with torch.inference_mode():
        modcache.lookup_or_run(module, X, "k")
    features = modcache.lookup_or_run(module, X, "k")
    nn.Linear(4, 2)(features).sum().backward()


class UsesOneOfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4).requires_grad_(False)
        self.other = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        y: torch.Tensor = self.used(x)
        if both:
            y = self.other(y)
        return y


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_graph_is_not_cut_off_when_another_parameter_is_unfrozen(face: str) -> None:
    module = in_form(UsesOneOfTwo(), face)
    assert not modcache.lookup_or_run(module, (X, False), "k").requires_grad
    for parameter in module.used.parameters():
        parameter.requires_grad_(True)
    assert modcache.lookup_or_run(module, (X, False), "k").requires_grad


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_graph_is_not_cut_off_when_other_arguments_ask_for_it(face: str) -> None:
    module = in_form(UsesOneOfTwo(), face)
    with torch.no_grad():
        modcache.lookup_or_run(module, (X, True), "k")
    assert not modcache.lookup_or_run(module, (X, False), "k").requires_grad
    assert modcache.lookup_or_run(module, (X, True), "k").requires_grad
