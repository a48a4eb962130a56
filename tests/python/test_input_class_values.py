# SPDX-License-Identifier: Apache-2.0
"""Values that the class of an input holds, and no method of it."""

from __future__ import annotations

import enum
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import modcache
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree


class Point(NamedTuple):
    first: Any


class Scaled(Point):
    scale = 2.0


class Named(UserDict):  # type: ignore[type-arg]
    scale = 2.0


@dataclass
class Record:
    first: Any
    scale: ClassVar[float] = 2.0


pytree.register_dataclass(Record)


class Kind(enum.Enum):
    ONE = 1


Kind.scale = 2.0  # type: ignore[attr-defined]


class Scales(nn.Module):
    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        return x * given.scale


MAKERS: dict[str, Callable[[], Any]] = {
    "named tuple": lambda: Scaled(1),
    "UserDict": lambda: Named(a=1),
    "dataclass": lambda: Record(torch.ones(2, 2)),
    "enum": lambda: Kind.ONE,
}


@pytest.mark.parametrize("key", ["k", ["a", "b"]], ids=["whole", "rows"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_value_of_the_class_counts(name: str, key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Scales(), torch.ones(2, 2)
    given = MAKERS[name]()
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, (x, given), key), 2 * x)
    assert modcache.stats()["hits_memory"] == (1 if key == "k" else 2)
    monkeypatch.setattr(type(given), "scale", 5.0)
    assert torch.equal(modcache.lookup_or_run(module, (x, given), key), 5 * x)
