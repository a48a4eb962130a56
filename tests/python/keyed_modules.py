# SPDX-License-Identifier: Apache-2.0
"""What tests of modcache.keys call in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import torch
from torch import nn

Growth = Callable[[], dict[str, int]]
X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = X.flip(1) * 2
IDS = torch.arange(3)
ONCE = {"misses": 3, "stored": 3}
HIT = {"hits_memory": 3}
OUTSIDE = {"bypassed_type": 1}


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Pipeline(nn.Module):
    """Somebody else's: no place for keys."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tower(x))  # type: ignore[no-any-return]


@modcache.cached(freeze=True)
class Decorated(Tower):
    pass


@modcache.cached
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Codec:
    factor = 3.0

    @modcache.cached()
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def tower() -> Any:
    return modcache.cached(Tower(), freeze=True)


def plain(module: Any, *args: Any) -> Any:
    with modcache.mode("off"):
        return module(*args)


def held() -> list[str] | None:
    """The keys that hold here."""
    try:
        return modcache.explain(Tower(), X[:1].expand(1, 4), scope="any").keys
    except TypeError:
        return None
