# SPDX-License-Identifier: Apache-2.0
"""Models that cache an encoder which somebody else made, and the forms they are deployed in."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

from collections.abc import Callable
from typing import Any

import modcache
import torch
from models import reloaded
from torch import Tensor, nn
from torch.utils import _pytree as pytree

# What a call may run that finds all it asks for.
HIT_OPERATORS = {"aten::empty", "aten::_lazy_clone", "aten::to", "forward", "rows"}


class OneInput(nn.Module):
    """Any encoder of one tensor."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, key: str) -> Any:
        return torch.ops.cache.lookup_or_run_any(self.encoder, x, key)

    @torch.jit.export
    def rows(self, x: Tensor, ids: Tensor) -> Any:
        return torch.ops.cache.lookup_or_run_any(self.encoder, x, ids)


class TwoInputs(nn.Module):
    """Any encoder of two tensors."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, y: Tensor, key: str) -> Any:
        return torch.ops.cache.lookup_or_run_any(self.encoder, (x, y), key)

    @torch.jit.export
    def rows(self, x: Tensor, y: Tensor, ids: Tensor) -> Any:
        return torch.ops.cache.lookup_or_run_any(self.encoder, (x, y), ids)


def lowered(scripted: Any) -> Any:
    copy = reloaded(scripted)
    torch.ops.cache.lower(copy)
    return copy


def optimized(scripted: Any) -> Any:
    others = [name for name in scripted._c._method_names() if name != "forward"]
    return torch.jit.optimize_for_inference(lowered(scripted), other_methods=others)


# From a scripted model in evaluation mode; each of these forms may be deployed.
FORMS: dict[str, Callable[[Any], Any]] = {
    "scripted": lambda model: model,
    "loaded": reloaded,
    "lowered": lowered,
    "frozen": lambda model: modcache.freeze(model),
    "frozen, saved": lambda model: reloaded(modcache.freeze(model)),
    "optimize_for_inference": optimized,
    "optimize_for_inference, saved": lambda model: reloaded(optimized(model)),
}


def assert_near(found: Any, expected: Any) -> None:
    """Every tensor of the one as in the other, but for rounding."""
    torch.testing.assert_close(
        pytree.tree_leaves(found), pytree.tree_leaves(expected), rtol=1e-3, atol=1e-4
    )


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        pytree.tree_leaves(found), pytree.tree_leaves(expected), rtol=0, atol=0
    )


def operators_of(run: Callable[[], Any]) -> set[str]:
    """The names of all operators that a call dispatches, those of the cache left out."""
    with torch.autograd.profiler.profile() as profile:
        run()
    names = {event.name for event in profile.function_events}
    return {name for name in names if not name.startswith("cache::")}
