# SPDX-License-Identifier: Apache-2.0
"""Values that were stored as one type, and TorchScript that declares or asks for another."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from typing import Any, List, NamedTuple, Tuple, Union  # noqa: UP035

import modcache
import pytest
import torch
from torch import nn

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


class GivesList(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return [x, x + 1]


class GivesPair(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        return x, x + 1


class GivesTensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("key", ["k", KEYS], ids=["one key", "per row"])
@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        (GivesPair, "lookup_or_run_any"),
        (GivesTensor, "lookup_or_run_any"),
        (GivesTensor, "lookup_or_run"),
    ],
)
def test_what_is_stored_as_another_type_is_replaced(
    key: Any, kind: Any, operator: str, counted: Any
) -> None:
    modcache.lookup_or_run(GivesList(), X, key, scope="s")
    module = torch.jit.script(kind())
    rows = 1 if key == "k" else len(KEYS)
    counted()
    call = getattr(torch.ops.cache, operator)
    call(module, X, key, scope="s")
    growth = counted()
    assert (growth["key_conflicts"], growth["stored"]) == (rows, rows)
    result = call(module, X, key, scope="s")
    assert counted() == {"hits_memory": rows}
    expected = module(X)
    results = zip(result, expected, strict=True) if kind is GivesPair else [(result, expected)]
    assert all(torch.equal(a, b) for a, b in results)


class Pair(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


class GivesNamed(nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        values, indices = torch.max(x, 1)
        return Pair(values, indices)


class GivesReturnType(nn.Module):
    """A structseq: a tuple with names, and no named tuple."""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.max(x, 1)


def test_what_python_took_for_a_named_tuple_is_safe_in_torchscript() -> None:
    for key in ("k", KEYS):
        modcache.lookup_or_run(GivesReturnType(), X, key, scope="s")
        result = modcache.lookup_or_run(torch.jit.script(GivesNamed()), X, key, scope="s")
        assert torch.equal(result.indices, X.max(1).indices)


class OneOrTwo(nn.Module):
    def forward(self, x: torch.Tensor) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:  # noqa: UP006, UP007
        if bool(x[0, 0] > 0):
            return x
        return x, x


class AsksForTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = OneOrTwo()

    def forward(self, x: torch.Tensor, keys: List[str]) -> bool:  # noqa: UP006
        r = torch.ops.cache.lookup_or_run_any(self.inner, x, keys)
        return isinstance(r, List[torch.Tensor])  # noqa: UP006


def test_a_list_of_rows_is_one_of_tensors_only_if_all_are() -> None:
    module = torch.jit.script(AsksForTensors())
    module(torch.ones(1, 2), ["one"])
    module(torch.zeros(1, 2), ["two"])
    assert module(torch.ones(2, 2), ["one", "two"]) is False
