# SPDX-License-Identifier: Apache-2.0
"""A result is kept only if it is a function of the module's state and its input."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from models import CountsCalls, CountsInBuffer, in_form
from torch import nn

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
IMAGES = torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4)


class FunctionalDropout(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, training=False) + 1


class LstmOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class GruOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


class AttentionOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


class DropoutInLoop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.size(0)):
            x = nn.functional.dropout(x, 0.5, training=False) + 1
        return x


class NoGradInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.linear(x)


CACHED = {
    "batch norm in eval": (
        lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval(),
        IMAGES,
    ),
    "dropout in eval": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), X),
    "functional dropout": (FunctionalDropout, X),
    "dropout in a loop": (DropoutInLoop, X),
    "lstm": (lambda: LstmOutput().eval(), X),
    "gru": (lambda: GruOutput().eval(), X),
    "attention": (lambda: AttentionOutput().eval(), X),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(4, 2, batch_first=True).eval(), X),
}


@pytest.mark.parametrize("face", ["eager", "scripted", "loaded", "traced"])
@pytest.mark.parametrize("name", CACHED)
def test_cached(name: str, face: str, counted: Any, capfd: Any) -> None:
    make, x = CACHED[name]
    module = in_form(make().requires_grad_(False), face, x)
    expected = module(x)
    for _ in range(3):
        assert torch.equal(modcache.lookup_or_run(module, x, "k"), expected)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}
    assert "modcache" not in capfd.readouterr().err


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_unfrozen_parameters_under_no_grad_inside_forward_are_cached(
    face: str, counted: Any, capfd: Any
) -> None:
    module = in_form(NoGradInside(), face)
    for _ in range(4):
        result = modcache.lookup_or_run(module, X, "k")
        assert torch.equal(result, module(X))
        assert not result.requires_grad
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}
    assert "modcache" not in capfd.readouterr().err


class Rotary(nn.Module):
    """Fills its table at the first use, and again when a longer input comes."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.table = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(1) > self.length:
            self.length = x.size(1)
            self.table = torch.arange(x.size(1), dtype=x.dtype).cos()
        return x * self.table[: x.size(1)].unsqueeze(-1)


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_table_that_is_filled_on_first_use_is_cached(face: str, counted: Any) -> None:
    module = in_form(Rotary(), face)
    expected = Rotary()(X)
    for _ in range(4):
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), expected)
    # The run that filled the table changed the module; the next one is kept.
    assert bypassed(counted()) == {"bypassed_impure": 1, "stored": 1, "hits_memory": 2}


# --- Not cached -------------------------------------------------------------------------


class DropoutInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


class Rand(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Normal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.normal(x, torch.ones_like(x))


class RandPerm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, torch.randperm(x.size(1))]


class Multinomial(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x[0].abs() + 1, 2)


class InPlaceUniform(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).uniform_()


class CarriesState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x + self.last
        self.last = self.last + 1
        return result


class NormInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


NOT_CACHED = {
    "dropout": (DropoutInTraining, "bernoulli|dropout"),
    "rand": (Rand, "rand"),
    "normal": (Normal, "normal"),
    "randperm": (RandPerm, "randperm"),
    "multinomial": (Multinomial, "multinomial|exponential"),
    "uniform": (InPlaceUniform, "uniform"),
    "counter": (CountsCalls, "calls"),
    "buffer": (CountsInBuffer, "calls"),
    "carried state": (CarriesState, "last"),
    "batch norm in training": (NormInTraining, "num_batches_tracked|running_mean|running_var"),
}


@pytest.mark.parametrize("face", ["eager", "scripted"])
@pytest.mark.parametrize("name", NOT_CACHED)
def test_not_cached_and_one_warning(name: str, face: str, counted: Any, capfd: Any) -> None:
    make, culprit = NOT_CACHED[name]
    # Warnings are per class, so each face needs a class of its own.
    make = type(f"{make.__name__}{face.title()}", (make,), {"__module__": __name__})
    module, twin = in_form(make(), face), make()
    for seed in range(3):
        torch.manual_seed(seed)
        result = modcache.lookup_or_run(module, X, "k")
        torch.manual_seed(seed)
        assert torch.equal(result, twin(X))
    assert bypassed(counted()) == {"bypassed_impure": 3}
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "modcache" in line]
    assert make.__name__ in line
    assert any(word in line for word in culprit.split("|")), line


class CountsUnderScope(CountsCalls):
    pass


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_scope_does_not_make_a_module_pure(face: str, counted: Any) -> None:
    module = in_form(CountsUnderScope(), face)
    for call in range(1, 4):
        assert torch.equal(modcache.lookup_or_run(module, X, "k", scope="counting"), X + call)
    assert bypassed(counted()) == {"bypassed_impure": 3}


class RandUnderStrict(Rand):
    pass


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_strict_makes_it_an_error(face: str) -> None:
    modcache.configure(strict=True)
    module = in_form(RandUnderStrict(), face)
    with pytest.raises(RuntimeError, match="rand"):
        modcache.lookup_or_run(module, X, "k")
    assert modcache.stats()["stored"] == 0
