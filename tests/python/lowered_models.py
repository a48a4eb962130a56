# SPDX-License-Identifier: Apache-2.0
"""Models whose cached calls are lowered and frozen, and the ways to do it."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from collections.abc import Callable
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import modcache
import torch
from models import Encoder, EncoderOfTwoMethods, TwoInputs, frozen, reloaded
from torch import nn

Road = Callable[[Any], Any]


def scripted(module: nn.Module) -> Any:
    return torch.jit.script(frozen(module))


def lowered(scripted: Any) -> Any:
    """Lowered in place, on a copy of its own."""
    copy = reloaded(scripted)
    torch.ops.cache.lower(copy)
    return copy


# Every road to a model that is served; all are given a scripted model in evaluation mode.
ROADS: dict[str, Road] = {
    "lowered": lowered,
    "lowered, saved": lambda m: reloaded(lowered(m)),
    "frozen": modcache.freeze,
    "frozen, saved": lambda m: reloaded(modcache.freeze(m)),
    "lowered, torch.jit.freeze": lambda m: torch.jit.freeze(lowered(m)),
    "lowered, optimize_for_inference": lambda m: torch.jit.optimize_for_inference(lowered(m)),
    "frozen, optimize_for_inference": lambda m: reloaded(
        torch.jit.optimize_for_inference(modcache.freeze(m))
    ),
}
FROZEN_ROADS = [name for name in ROADS if "froz" in name or "freez" in name or "opt" in name]


class Pair(NamedTuple):
    mean: torch.Tensor
    length: int


class Structured(nn.Module):
    def forward(self, x: torch.Tensor) -> Dict[str, List[torch.Tensor]]:  # noqa: UP006
        return {"both": [x + 1, x * 2], "none": []}


class Named(nn.Module):
    def forward(self, x: torch.Tensor, bias: Optional[torch.Tensor] = None) -> Pair:  # noqa: UP045
        return Pair(x.mean() if bias is None else x.mean() + bias, x.size(0))


class Calls(nn.Module):
    """Each form of call, in forward, in other methods, in blocks, of nested submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = Encoder()
        self.nested = nn.ModuleDict({"inner": nn.Sequential(EncoderOfTwoMethods(), nn.ReLU())})
        self.two = TwoInputs()
        self.structured = Structured()
        self.named = Named()
        self.many = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        y = modcache.lookup_or_run(self.plain, x, key)
        z = modcache.lookup_or_run(self.nested["inner"][0], x, key, method="negated")
        return y + z + modcache.lookup_or_run(self.nested["inner"], x, key)

    @torch.jit.export
    def by_rows(self, x: torch.Tensor, keys: List[str]) -> torch.Tensor:  # noqa: UP006
        return modcache.lookup_or_run(self.plain, x, keys)

    @torch.jit.export
    def by_ids(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.two, (x, x * 2, 3), ids, scope="two@1")

    @torch.jit.export
    def structure(self, x: torch.Tensor, key: str) -> Dict[str, List[torch.Tensor]]:  # noqa: UP006
        found = torch.ops.cache.lookup_or_run_any(self.structured, x, key)
        assert isinstance(found, Dict[str, List[torch.Tensor]])  # noqa: UP006
        return found

    @torch.jit.export
    def structure_by_rows(
        self, x: torch.Tensor, ids: torch.Tensor
    ) -> Dict[str, List[torch.Tensor]]:  # noqa: UP006
        found = torch.ops.cache.lookup_or_run_any(self.structured, x, ids)
        assert isinstance(found, Dict[str, List[torch.Tensor]])  # noqa: UP006
        return found

    @torch.jit.export
    def name(self, x: torch.Tensor, key: str) -> Tuple[torch.Tensor, int]:  # noqa: UP006
        found = torch.ops.cache.lookup_or_run_any(self.named, x, key)
        assert isinstance(found, Pair)
        return found.mean, found.length

    @torch.jit.export
    def in_blocks(self, x: torch.Tensor, keys: List[str]) -> torch.Tensor:  # noqa: UP006
        for key in keys:
            if key != "skip":
                for linear in self.many:
                    x = modcache.lookup_or_run(linear, x, key)
        return x


def calls_of(x: torch.Tensor) -> list[tuple[str, tuple[Any, ...]]]:
    """Every method of Calls, with arguments for it."""
    rows = x.size(0)
    return [
        ("forward", (x, "k")),
        ("by_rows", (x, [f"row {i}" for i in range(rows)])),
        ("by_ids", (x, torch.arange(rows))),
        ("structure", (x, "k")),
        ("structure_by_rows", (x, torch.arange(rows))),
        ("name", (x, "k")),
        ("in_blocks", (x, ["a", "skip", "b"])),
    ]
