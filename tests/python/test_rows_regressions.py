# SPDX-License-Identifier: Apache-2.0
"""Row forms and structured values: bugs that were found once."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

from typing import Any, List, NamedTuple, Tuple, Union  # noqa: UP035

import modcache
import pytest
import torch
from models import in_form
from torch import nn

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


class ChangesOnce(nn.Module):
    """Changes its state in its first run only."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.runs
        if self.runs < 1:
            self.runs += 1
        return y


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_later_runs_of_a_call_are_compared_with_what_was_before_the_first(face: str) -> None:
    modcache.configure(max_rows=1)
    x = torch.zeros(3, 1)
    modcache.lookup_or_run(in_form(ChangesOnce(), face), x, KEYS)
    fresh = in_form(ChangesOnce(), face)
    assert modcache.lookup_or_run(fresh, x[:1], ["b"]).item() == 0


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


class Texts(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, List[int]]:  # noqa: UP006
        return x, list(range(20_000))


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_plain_values_count_as_memory(face: str) -> None:
    modcache.configure(memory="20MB", policy="lru")
    module = in_form(Texts(), face)
    for index in range(12):
        modcache.lookup_or_run(module, X[:1], f"k{index}")
        modcache.lookup_or_run(module, X[:1], [f"k{index}"])
    stats = modcache.stats()
    assert stats["evicted"] > 0
    assert stats["bytes_memory"] >= 20_000 * 8 * stats["entries_memory"]


class Squeezes(nn.Module):
    """Loses the first dimension when it is run on one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 4, 1).squeeze()


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_result_without_rows_of_a_part_has_the_whole_batch_run(face: str) -> None:
    module = in_form(Squeezes(), face)
    modcache.lookup_or_run(module, X[:2], KEYS[:2])
    assert torch.equal(modcache.lookup_or_run(module, X, KEYS), X)
    assert torch.equal(modcache.lookup_or_run(module, X, KEYS), X)
    assert modcache.stats()["hits_memory"] >= 3


class UpTo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x[0, 0])]


def test_repeated_rows_of_a_list_are_ordinary_tensors() -> None:
    modcache.configure(max_rows=1)
    x = torch.tensor([[1.0, 9.0], [2.0, 9.0], [1.0, 9.0]])
    with torch.inference_mode():
        modcache.lookup_or_run(UpTo(), x[:2], ["a", "b"], ragged="list")
        rows = modcache.lookup_or_run(UpTo(), x, ["a", "b", "a"], ragged="list")
    assert [row.is_inference() for row in rows] == [False] * 3


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


def test_an_allocation_that_fails_is_an_error_and_no_crash() -> None:
    module = GivesTensor()
    x = torch.ones(1, 1 << 18)
    modcache.lookup_or_run(module, x, ["a"], scope="s")
    many = 1 << 22  # rows of 1 MiB: more memory than any machine of ours has
    with pytest.raises(RuntimeError):
        modcache.lookup_or_run(module, x.expand(many, -1), ["a"] * many, scope="s")
