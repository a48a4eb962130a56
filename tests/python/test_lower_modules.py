# SPDX-License-Identifier: Apache-2.0
"""Modules whose calls are lowered: with loops, shared parts, constants, states, autocast."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from lowered_models import ROADS, Road, scripted
from models import Outer
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(params=ROADS, ids=lambda name: name.replace(", ", "-"))
def road(request: pytest.FixtureRequest) -> Road:
    return ROADS[request.param]


class ByIds(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class DropoutInALoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = Lstm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.size(1)):
            x = self.lstm(nn.functional.dropout(x, 0.5, self.training))
        return x


@pytest.mark.parametrize("encoder", [Lstm, DropoutInALoop])
def test_operators_in_a_loop_of_the_graph_are_asked_for_their_own_arguments(
    road: Road, encoder: type[nn.Module], counted: Any
) -> None:
    served = road(scripted(ByIds(encoder())))
    x = torch.randn(3, 5, 4)
    for _ in range(2):
        served(x, torch.arange(3))
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = Block()
        self.b = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class Models(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Outer(Stack())
        self.other = Outer(Stack())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x, "k"), self.other(x, "k")


class TestASubmoduleThatLiesAtTwoPaths:
    def test_entries_are_shared(self, road: Road, counted: Any) -> None:
        model = scripted(Outer(Stack()))
        model.encoder.b = model.encoder.a
        expected = model(X, "k")
        counted()
        torch.testing.assert_close(road(model)(X, "k"), expected)
        assert counted() == {"hits_memory": 1}

    def test_another_comes_to_lie_at_one_of_them(self) -> None:
        model = scripted(Outer(Stack()))
        other = model.encoder.b
        model.encoder.b = model.encoder.a
        torch.ops.cache.lower(model)
        model(X, "k")
        model.encoder.b = other
        found = model(X, "k")
        with modcache.mode("off"):
            assert torch.equal(found, model(X, "k"))

    def test_a_module_of_the_same_class_in_which_it_does_not(self, road: Road) -> None:
        model = scripted(Models())
        model.one.encoder.b = model.one.encoder.a
        model.other.encoder.a = model.one.encoder.a
        with modcache.mode("off"):
            expected = model(X)
        torch.testing.assert_close(road(model)(X), expected)


def test_names_with_blanks(road: Road, counted: Any) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a part": nn.Linear(4, 4), "50%": nn.Linear(4, 4)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts.values():
                x = part(x)
            return x

    model = scripted(Outer(Named()))
    model(X, "k")
    counted()
    road(model)(X, "k")
    assert counted() == {"hits_memory": 1}


class OfConstants(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3, 4)


class WritesIntoTheResult(Outer):
    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        found = modcache.lookup_or_run(self.encoder, x, key)
        found[0].mul_(3)
        return found


class WritesIntoRows(ByIds):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids).mul_(3)


class TestAResultThatTorchWouldTakeForAConstant:
    def test_is_written_into(self, road: Road) -> None:
        served = road(scripted(WritesIntoTheResult(OfConstants())))
        for key in ("a", "b", "b", "c", "a"):
            assert torch.equal(served(X, key)[0], torch.full((4,), 3.0))

    def test_is_written_into_by_rows(self, road: Road) -> None:
        served = road(scripted(WritesIntoRows(OfConstants())))
        for first in (0, 3, 3, 6, 7):
            found = served(X, torch.arange(first, first + 3))
            assert torch.equal(found, torch.full((3, 4), 3.0))


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_state_that_comes_to_lie_where_the_old_one_lay(
    road: Road, steps: int, counted: Any
) -> None:
    class Carries(nn.Module):
        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps
            self.register_buffer("state", torch.zeros(3, 4))
            self.states = [torch.zeros(3, 4)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.steps):
                self.state = self.state * 0.5 + x
                self.states[0] = self.states[0] * 0.5 + x
            return self.state + self.states[0]

    served = road(scripted(Outer(Carries(steps))))
    for _ in range(3):
        served(X, "k")
    assert bypassed(counted()) == {"bypassed_impure": 3}


class Features(Outer):
    def features(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, key)


class InAutocast(Features):
    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return modcache.lookup_or_run(self.encoder, x, key)


class InAMethodInAutocast(Features):
    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        y = x
        if key != "":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.features(x, key)
        return y


class BesideAutocast(Features):
    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x * 2
        with torch.no_grad():
            return self.features(x, key)


class TestAutocastInTheGraph:
    """It reaches no module behind an operator, but it would reach one that is written out."""

    @pytest.mark.parametrize("model", [InAutocast, InAMethodInAutocast])
    def test_around_a_call_is_refused(self, model: type[Outer]) -> None:
        with pytest.raises(RuntimeError, match=r"within torch\.autocast.*around the model"):
            modcache.freeze(scripted(model(nn.Linear(4, 4))))

    def test_elsewhere(self, road: Road, counted: Any) -> None:
        model = scripted(BesideAutocast(nn.Linear(4, 4)))
        expected = model(X, "k")
        counted()
        assert torch.equal(road(model)(X, "k"), expected)
        assert counted() == {"hits_memory": 1}
