# SPDX-License-Identifier: Apache-2.0
"""One look-up, and functions to look up: what the tests of docs/limits.md share."""

from __future__ import annotations

from collections.abc import Callable

import modcache
import torch
from torch import nn

X = torch.ones(3)
Call = Callable[[torch.Tensor], torch.Tensor]


def looked_up(module: nn.Module, key: str = "k", scope: str = "") -> float:
    """The first element of what the cache gives."""
    result: torch.Tensor = modcache.lookup_or_run(module, X, key, scope=scope)
    return result.flatten()[0].item()


def made_of(factor: float) -> Call:
    """Closures over one and the same code."""
    return lambda x: x * factor
