# SPDX-License-Identifier: Apache-2.0
"""Models with a cached encoder, for torch.export and torch.compile."""

from __future__ import annotations

from typing import Any

import modcache
import torch
from models import frozen
from torch import nn

X = torch.linspace(-1, 1, 32).reshape(4, 8)
IDS = torch.arange(4)


def encoder(width: int = 16) -> nn.Module:
    return frozen(nn.Sequential(nn.Linear(8, width), nn.ReLU()))


class Classifier(nn.Module):
    """A cached encoder and a head."""

    def __init__(self, scope: str = "", part: nn.Module | None = None, **options: Any) -> None:
        super().__init__()
        self.encoder = encoder() if part is None else part
        self.head = nn.Linear(16, 2)
        self.scope = scope
        self.options = options

    def forward(self, x: Any, ids: torch.Tensor) -> Any:
        return self.head(
            modcache.lookup_or_run(self.encoder, x, ids, scope=self.scope, **self.options)
        )


class Scripted(nn.Module):
    """The same for torch.jit.script, without a scope."""

    def __init__(self, part: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = part
        self.head = head

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.ops.cache.lookup_or_run(self.encoder, x, ids))


class OneKey(nn.Module):
    """One key for the whole input, which is part of the program."""

    def __init__(self, part: nn.Module, key: str = "k") -> None:
        super().__init__()
        self.encoder = part
        self.key = key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, self.key, scope="enc@1")


def exported(model: nn.Module, *inputs: Any, strict: bool = False, is_dynamic: bool = True) -> Any:
    """The exported program, whose first sizes may change."""
    rows = torch.export.Dim("rows", min=0)
    shapes = torch.utils._pytree.tree_map(lambda _: {0: rows}, inputs) if is_dynamic else None
    return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=strict)


def count_of(program: Any, name: str) -> int:
    """How many calls of an operator are anywhere in a program."""
    return sum(
        str(node.target).startswith(name)
        for part in program.graph_module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
        if node.op == "call_function"
    )
