# SPDX-License-Identifier: Apache-2.0
"""Lowered calls, frozen or not, follow the rules and modes; lowered ones see weights change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from lowered_models import ROADS, Road, scripted
from models import CountsCalls, CountsInBuffer, Encoder, Outer, set_requires_grad
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(params=ROADS, ids=lambda name: name.replace(", ", "-"))
def road(request: pytest.FixtureRequest) -> Road:
    return ROADS[request.param]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda e: e.linear.weight.add_(1),
    "replaced": lambda e: setattr(e.linear, "weight", nn.Parameter(e.linear.weight * 2, False)),
    "data": lambda e: [p.data.mul_(0.5) for p in e.parameters()],
    "load_state_dict": lambda e: e.load_state_dict({n: v + 1 for n, v in e.state_dict().items()}),
    "number": lambda e: setattr(e, "scale", 3.0),
    "dict": lambda e: setattr(e, "table", {"gain": 2.0, "unused": 0.0}),
    "plain tensor": lambda e: setattr(e, "shift", e.shift + 1),
    "buffer": lambda e: setattr(e, "mean", e.mean + 1),
    "dtype": lambda e: e.half().float(),
}


class TestLoweredAndNotFrozen:
    @pytest.mark.parametrize("change", CHANGES)
    def test_what_changed_gives_no_old_output(self, change: str, counted: Any) -> None:
        model = scripted(Outer(Encoder()))
        torch.ops.cache.lower(model)
        model(X, "k")
        assert counted() == {"misses": 1, "stored": 1}
        with torch.no_grad():
            CHANGES[change](model.encoder)
        found = model(X, "k")
        assert counted() == {"misses": 1, "stored": 1}
        with modcache.mode("off"):
            assert torch.equal(found, model(X, "k"))
        counted()
        assert torch.equal(model(X, "k"), found)
        assert counted() == {"hits_memory": 1}

    @pytest.mark.parametrize("fused", [False, True])
    def test_optimizer_steps(self, fused: bool, counted: Any) -> None:
        model = torch.jit.script(Outer(Encoder()))
        torch.ops.cache.lower(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        for _ in range(3):
            with torch.no_grad():
                found = model(X, "k")
            with modcache.mode("off"):
                assert torch.equal(found, model(X, "k"))
            model(X, "another").sum().backward()
            optimizer.step()
        assert counted()["bypassed_grad"] == 3

    def test_lowering_twice_changes_nothing_more(self) -> None:
        model = scripted(Outer(Encoder()))
        torch.ops.cache.lower(model)
        once = model.code
        torch.ops.cache.lower(model)
        assert model.code == once


class TestRules:
    def test_a_result_that_requires_grad_is_not_kept(self, counted: Any) -> None:
        model = torch.jit.script(Outer(Encoder()))
        torch.ops.cache.lower(model)
        for _ in range(2):
            loss = model(X, "k").sum()
        loss.backward()
        assert bypassed(counted()) == {"bypassed_grad": 2}
        set_requires_grad(model, False)
        model(X, "k")
        assert counted() == {"misses": 1, "stored": 1}

    def test_an_input_that_requires_grad(self, road: Road, counted: Any) -> None:
        served = road(scripted(Outer(Encoder())))
        x = X.clone().requires_grad_()
        served(x, "k").sum().backward()
        assert x.grad is not None
        assert bypassed(counted()) == {"bypassed_grad": 1}

    def test_random_numbers(self, road: Road, counted: Any) -> None:
        class Noisy(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + torch.rand_like(x)

        served = road(scripted(Outer(Noisy())))
        assert not torch.equal(served(X, "k"), served(X, "k"))
        assert bypassed(counted()) == {"bypassed_impure": 2}

    def test_a_module_that_counts_its_calls(self, road: Road, counted: Any) -> None:
        served = road(scripted(Outer(CountsCalls())))
        assert not torch.equal(served(X, "k"), served(X, "k"))
        assert bypassed(counted()) == {"bypassed_impure": 2}

    def test_a_module_that_writes_into_a_buffer(self, road: Road, counted: Any) -> None:
        served = road(scripted(Outer(CountsInBuffer())))
        assert not torch.equal(served(X, "k"), served(X, "k"))
        assert bypassed(counted()) == {"bypassed_impure": 2}

    def test_batch_norm_in_training_and_in_evaluation(self, counted: Any) -> None:
        model = torch.jit.script(Outer(nn.BatchNorm1d(4))).train()
        set_requires_grad(model, False)
        torch.ops.cache.lower(model)
        model(X, "k")
        model(X, "k")
        assert bypassed(counted()) == {"bypassed_impure": 2}
        model.eval()
        model(X, "k")
        model(X, "k")
        assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}

    def test_the_encoders_own_exception(self, road: Road, counted: Any) -> None:
        class Raises(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if bool(x.sum() > 0):
                    raise ValueError("too large")
                return x

        served = road(scripted(Outer(Raises())))
        with pytest.raises(Exception, match="too large"):
            served(X + 1, "k")
        assert "stored" not in counted()
        served(X - 1, "k")
        assert counted() == {"misses": 1, "stored": 1}

    def test_results_may_be_written_into(self, road: Road) -> None:
        class Writes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = Encoder()

            def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
                return modcache.lookup_or_run(self.encoder, x, key).add_(1)

        served = road(scripted(Writes()))
        first = served(X, "k").clone()
        for _ in range(3):
            assert torch.equal(served(X, "k"), first)


@pytest.mark.parametrize("mode", ["off", "read", "on", "refresh", "verify"])
def test_modes(road: Road, mode: str, counted: Any) -> None:
    model = scripted(Outer(Encoder()))
    served = road(model)
    expected = model(X, "k")
    grown = {}
    for form, called in {"scripted": model, "served": served}.items():
        counted()
        with modcache.mode(mode):
            torch.testing.assert_close(called(X, "k"), expected)
            torch.testing.assert_close(called(X, "other"), expected)
        grown[form] = counted()
        modcache.clear(prefix="other")
    assert grown["served"] == grown["scripted"]
    if mode == "off":
        assert grown["served"] == {"bypassed_off": 2}
