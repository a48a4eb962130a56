# SPDX-License-Identifier: Apache-2.0
"""The modules that tests of modcache.cached use: a cached instance, and a decorated class."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from torch import nn

X = torch.arange(6.0).reshape(3, 2)
IDS = torch.arange(3)
ONCE = {"misses": 3, "stored": 3}
HIT = {"hits_memory": 3}


class Encoder(nn.Module):
    """Encodes."""

    def __init__(self, size: int = 2) -> None:
        # The older way, which a decorator that returned another class would break.
        super(Encoder, self).__init__()  # noqa: UP008
        self.linear = nn.Linear(size, size)
        self.drop = nn.Dropout()
        self.scale = 2.0

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        """Runs."""
        return self.drop(self.linear(x)) * self.scale * times


@modcache.cached(key="ids")
class Decorated(Encoder):
    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return super().forward(x, times) + 1


@modcache.cached(key="ids", freeze=True)
class Frozen(nn.Module):
    def __init__(self, size: int = 2) -> None:
        super(Frozen, self).__init__()  # noqa: UP008
        self.linear = nn.Linear(size, size)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.linear(x))


def instance() -> Any:
    return modcache.cached(Encoder().requires_grad_(False).eval(), key="ids")


def decorated() -> Any:
    return Decorated().requires_grad_(False).eval()


both = pytest.mark.parametrize("make", [instance, decorated])


def uncached(module: Any, *args: Any) -> torch.Tensor:
    with modcache.mode("off"):
        return module(*args, ids=IDS)  # type: ignore[no-any-return]


def frozen_instance() -> Any:
    return modcache.cached(Encoder(), key="ids", freeze=True)
