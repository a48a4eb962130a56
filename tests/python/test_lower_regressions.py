# SPDX-License-Identifier: Apache-2.0
"""What once went wrong in lowered calls."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from typing import Any

import modcache
import pytest
import torch
from lowered_models import ROADS, Road, scripted
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
