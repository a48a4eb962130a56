# SPDX-License-Identifier: Apache-2.0
"""Writes to weights that leave little trace: without a version, to one tensor of many, to a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from models import frozen
from torch import nn

FORMS = pytest.mark.parametrize("form", [lambda m: m, torch.jit.script], ids=["eager", "scripted"])
X = torch.linspace(-1, 1, 8)


def is_fresh(module: Any, x: torch.Tensor = X, key: str = "k") -> bool:
    with torch.no_grad():
        return torch.equal(modcache.lookup_or_run(module, x, key), module(x))


def layers(count: int = 20, size: int = 8) -> nn.Module:
    return frozen(nn.Sequential(*[nn.Linear(size, size) for _ in range(count)]))


# --- One tensor of many --------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_one_layer_of_many_written_through_data(form: Any, name: str) -> None:
    module = form(layers())
    for layer in range(20):
        assert is_fresh(module)
        getattr(getattr(module, str(layer)), name).data.mul_(2)
        assert is_fresh(module)


@FORMS
def test_a_write_to_a_tensor_that_begins_with_zeros(form: Any) -> None:
    embedding = nn.Embedding(50, 16)
    embedding.weight.data[:3] = 0
    module = form(frozen(embedding))
    rows = torch.tensor([40])
    assert is_fresh(module, rows)
    module.weight.data.mul_(2)
    assert is_fresh(module, rows)


class ManyTensors(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.full((8,), 1.0) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales[-3:]:
            x = x * scale
        return x


def test_of_absurdly_many_tensors_some_wait_for_a_later_call() -> None:
    module = frozen(ManyTensors(5000))
    assert is_fresh(module)
    module.scales[-1].data.mul_(2)
    modcache.lookup_or_run(module, X, "k")
    assert is_fresh(module)


# --- Gradients foretell writes -------------------------------------------------------------------


def descend(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)


@FORMS
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_by_hand_to_one_row(form: Any, set_to_none: bool, sparse: bool) -> None:
    module = form(nn.Embedding(10000, 16, sparse=sparse))
    rows = torch.tensor([1234])
    for _ in range(5):
        assert is_fresh(module, rows)
        for parameter in module.parameters():
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = parameter.grad.detach()
                parameter.grad.zero_()
        module(rows).sum().backward()
        descend(module)
        assert is_fresh(module, rows)


@FORMS
def test_a_lookup_between_backward_and_the_step(form: Any) -> None:
    module = form(nn.Embedding(10000, 16))
    rows = torch.tensor([1234])
    assert is_fresh(module, rows)
    module(rows).sum().backward()
    assert is_fresh(module, rows)
    descend(module)
    assert is_fresh(module, rows)


@FORMS
def test_a_gradient_that_stays_costs_no_hit(form: Any, counted: Any) -> None:
    module = form(nn.Linear(8, 8))
    module(X).sum().backward()
    for _ in range(3):
        assert is_fresh(module)
    assert counted() == {"hits_memory": 2, "misses": 1, "stored": 1}


# --- Tensors that count no versions --------------------------------------------------------------


@FORMS
def test_one_bias_of_a_module_made_under_inference_mode(form: Any) -> None:
    with torch.inference_mode():
        module = form(layers())
        for layer in range(20):
            assert is_fresh(module)
            state = {name: value.clone() for name, value in module.state_dict().items()}
            state[f"{layer}.bias"][5] += 1
            module.load_state_dict(state)
            assert is_fresh(module)


@FORMS
def test_one_weight_of_a_module_made_under_inference_mode(form: Any) -> None:
    with torch.inference_mode():
        module = form(layers(size=64))
        x = torch.ones(64)
        for layer in range(20):
            assert is_fresh(module, x)
            getattr(module, str(layer)).weight.mul_(2)
            assert is_fresh(module, x)


class Counts(nn.Module):
    """Carries state from call to call, in one element somewhere of a buffer."""

    def __init__(self, size: int, place: int) -> None:
        super().__init__()
        self.body = layers()
        self.place = place
        self.register_buffer("n", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n[self.place] += 1
        return self.body(x) + self.n[self.place]


def scripted(module: nn.Module) -> Any:
    return torch.jit.script(module)


@pytest.mark.parametrize(
    ("form", "size", "place", "scope"),
    [
        (lambda m: m, 8, 0, ""),
        (scripted, 8, 0, ""),
        (scripted, 8, 5, "mine@1"),
        (scripted, 100_000, 77_777, ""),
        (scripted, 100_000, 77_777, "mine@1"),
    ],
)
def test_a_module_made_under_inference_mode_that_counts_its_calls(
    form: Callable[[nn.Module], Any], size: int, place: int, scope: str, counted: Any
) -> None:
    with torch.inference_mode():
        module = form(Counts(size, place).eval())
        for _ in range(5):
            modcache.lookup_or_run(module, X, "k", scope=scope)
        assert module.n[place].item() == 5
    assert bypassed(counted()) == {"bypassed_impure": 5}


@FORMS
def test_a_module_made_under_inference_mode_is_cached(form: Any, counted: Any) -> None:
    with torch.inference_mode():
        module = form(layers(size=64))
        x = torch.ones(64)
        for _ in range(20):
            assert is_fresh(module, x)
    assert counted() == {"hits_memory": 19, "misses": 1, "stored": 1}


# --- Tensors that were replaced, and writes between samples --------------------------------------


@FORMS
def test_a_large_parameter_is_replaced(form: Any) -> None:
    """The old one's samples lay in memory that had been given back."""
    module = form(frozen(nn.Linear(2000, 2000, bias=False)))
    x = torch.ones(1, 2000)
    is_fresh(module, x)
    module.weight = nn.Parameter(torch.zeros(2000, 2000), requires_grad=False)
    assert is_fresh(module, x)


@FORMS
def test_a_write_without_trace_beside_one_with_a_version(form: Any) -> None:
    module = form(frozen(nn.Linear(8, 8)))
    is_fresh(module)
    module.weight.data.mul_(2)
    module.bias.copy_(module.bias.clone())
    for _ in range(3):
        assert is_fresh(module)


@FORMS
def test_a_write_without_trace_to_half_of_a_tensor(form: Any) -> None:
    module = form(frozen(nn.Linear(64, 64, bias=False)))
    x = torch.ones(64)
    is_fresh(module, x)
    module.weight.data[:32].mul_(2)
    # Samples rotate: after as many calls as a tensor has samples the write has been seen.
    for _ in range(8):
        is_fresh(module, x)
    assert is_fresh(module, x)


@FORMS
def test_weights_in_channels_last_are_sampled(form: Any) -> None:
    conv = nn.Conv2d(4, 4, 3, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module = form(frozen(conv))
    x = torch.ones(1, 4, 5, 5)
    is_fresh(module, x)
    for parameter in module.parameters():
        parameter.data.mul_(2)
    assert is_fresh(module, x)


@FORMS
def test_a_fused_step_to_a_few_rows_outside_the_cache(form: Any) -> None:
    embedding = nn.Embedding(1000, 16)
    module = form(embedding)
    optimizer = torch.optim.Adam(embedding.parameters(), lr=0.1, fused=True)
    rows = torch.arange(50) + 100
    for _ in range(3):
        embedding(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            assert is_fresh(module, rows)


def test_tensors_stay_swappable() -> None:
    module = frozen(nn.Linear(8, 8))
    is_fresh(module)
    torch.utils.swap_tensors(module.weight, nn.Parameter(torch.ones(8, 8), requires_grad=False))
    assert is_fresh(module)


def test_a_new_parameter_at_the_address_of_the_old_over_the_same_storage() -> None:
    """Its version counter began anew, and came to what the old one's had been."""
    module: Any = frozen(nn.Linear(64, 64, bias=False))
    x = torch.ones(64)
    for number in range(50):
        is_fresh(module, x)
        values = module.weight.data
        del module.weight
        values[number, number] = 100.0 + number
        module.weight = nn.Parameter(values, requires_grad=False)
        assert is_fresh(module, x)
