# SPDX-License-Identifier: Apache-2.0
"""A keyed dataset and a model that returns its loss, for tests of training loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import torch
from keyed_modules import Pipeline, Tower
from torch import nn
from torch.utils.data import Dataset


class Rows(Dataset[Any]):
    """Twelve samples, each the same every time."""

    def __init__(self, make: Callable[[torch.Tensor, int], Any], seed: int = 0) -> None:
        self.make = make
        self.seed = seed

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index + self.seed)
        return self.make(torch.randn(4, generator=generator), index % 2)


def as_dict(x: torch.Tensor, label: int) -> Any:
    return {"x": x, "labels": label, "text": "dropped"}


def as_tuple(x: torch.Tensor, label: int) -> Any:
    return x, label


class Model(Pipeline):
    """A model that returns its loss."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = super().forward(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def model(*, is_cached: bool = True) -> Model:
    torch.manual_seed(0)
    tower = Tower().requires_grad_(False).eval()
    return Model(modcache.cached(tower, freeze=True) if is_cached else tower)
