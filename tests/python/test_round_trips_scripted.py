# SPDX-License-Identifier: Apache-2.0
"""What TorchScript can return comes back bit for bit, inside TorchScript too."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

import itertools
from collections.abc import Callable
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import modcache
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import ProcessRunner
from torch import nn
from value_strategies import (
    exact,
    floats,
    int64s,
    row_of,
    rows_of,
    tensor_from,
    tensors,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

EXAMPLES = settings(
    deadline=None,
    derandomize=True,
    max_examples=15,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Named(NamedTuple):
    x: torch.Tensor
    count: Optional[int]  # noqa: UP045
    rest: Tuple[str, bool, float]  # noqa: UP006


class Kinds(nn.Module):
    """Makes one of everything of its arguments."""

    def forward(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        rank: torch.Tensor,
        number: float,
        count: Optional[int],  # noqa: UP045
        text: str,
    ) -> Tuple[  # noqa: UP006
        torch.Tensor,
        Dict[str, List[torch.Tensor]],  # noqa: UP006
        Dict[int, Optional[torch.Tensor]],  # noqa: UP006, UP045
        Named,
        List[Named],  # noqa: UP006
        List[float],  # noqa: UP006
    ]:
        named = Named(b, count, (text, count is None, number))
        none: Optional[torch.Tensor] = None  # noqa: UP045
        empty: List[torch.Tensor] = []  # noqa: UP006
        lists: Dict[str, List[torch.Tensor]] = {text: [a, b], text + "0": empty}  # noqa: UP006
        options: Dict[int, Optional[torch.Tensor]] = {-3: b, 1099511627776: none}  # noqa: UP006, UP045
        return a, lists, options, named, [named, named], [number, -number]


class First(nn.Module):
    def forward(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        rank: torch.Tensor,
        number: float,
        count: Optional[int],  # noqa: UP045
        text: str,
    ) -> torch.Tensor:
        return a


class OneKey(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kinds = Kinds()
        self.first = First()

    def forward(
        self,
        input: Tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, Optional[int], str],  # noqa: UP006, UP045
        key: str,
    ) -> Tuple[torch.Tensor, Any]:  # noqa: UP006
        first = modcache.lookup_or_run(self.first, input, key)
        return first, torch.ops.cache.lookup_or_run_any(self.kinds, input, key)


class PerRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kinds = Kinds()
        self.first = First()

    def forward(
        self,
        input: Tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, Optional[int], str],  # noqa: UP006, UP045
        keys: List[str],  # noqa: UP006
    ) -> Tuple[torch.Tensor, Any]:  # noqa: UP006
        first = modcache.lookup_or_run(self.first, input, keys)
        return first, torch.ops.cache.lookup_or_run_any(self.kinds, input, keys)


@st.composite
def inputs(draw: Any, rows: int) -> tuple[Any, ...]:
    rank = torch.arange(2.0 * rows).reshape(rows, 2)  # rows that were equal would prove nothing
    return (
        draw(tensors(rows)), draw(tensors(rows)), rank, draw(floats), draw(st.none() | int64s),
        draw(texts),
    )  # fmt: skip


def described(input: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*map(exact, input[:3]), *input[3:])


def ask_again(
    whole: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]
) -> tuple[list[Any], dict[str, int]]:
    """In another process: the keys whose results differ, and the counters."""
    wrong = []
    one_key, per_row = torch.jit.script(OneKey()), torch.jit.script(PerRow())
    for sample, key, expected in whole:
        if exact(one_key((*map(tensor_from, sample[:3]), *sample[3:]), key)) != expected:
            wrong.append(key)
    for sample, keys, expected in rows:
        result = per_row((*map(tensor_from, sample[:3]), *sample[3:]), keys)
        if [exact(row_of(result, row)) for row in range(len(keys))] != expected:
            wrong.append(keys)
    return wrong, modcache.stats()


def test_in_torchscript(
    codec: str, counted: Any, reopen: Callable[[], None], processes: ProcessRunner
) -> None:
    numbers = itertools.count()
    one_key, per_row = torch.jit.script(OneKey()), torch.jit.script(PerRow())
    whole: list[Any] = []
    rows: list[Any] = []

    @EXAMPLES
    @given(
        st.lists(inputs(3), min_size=3, max_size=6),
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
    )
    def comes_back(drawn: list[Any], order: list[int]) -> None:
        asked = [(str(next(numbers)), sample) for sample in drawn]
        counted()
        for tier in ("misses", "hits_memory", "hits_disk"):
            if tier == "hits_disk":
                reopen()
            for key, sample in asked:
                expected = exact((sample[0], Kinds()(*sample)))
                assert exact(one_key(sample, key)) == expected
                if tier == "misses":
                    whole.append((described(sample), key, expected))
            growth = counted()
            assert growth.pop("stored", 0) == (2 * len(asked) if tier == "misses" else 0)
            assert growth == {tier: 2 * len(asked)}

        for step in ("first", "again", "from disk"):
            if step == "from disk":
                reopen()
            for key, sample in asked:
                these = [0, 1] if step == "first" else order
                part = rows_of(sample, these)
                keys = [f"{key}/{row}" for row in these]
                result = per_row(part, keys)
                given_back = [exact(row_of(result, place)) for place in range(len(these))]
                all_rows = (sample[0], Kinds()(*sample))
                expected = [exact(row_of(all_rows, row)) for row in these]
                assert given_back == expected
                if step == "again":
                    rows.append((described(part), keys, expected))
            misses = {"first": 2, "again": int(2 in order), "from disk": 0}[step]
            growth = counted()
            assert growth.pop("stored", 0) == growth.pop("misses", 0) == 2 * misses * len(asked)
            assert set(growth) <= {"hits_memory", "hits_disk"}

    comes_back()
    modcache.flush()
    assert len(rows) == len(whole) > EXAMPLES.max_examples
    wrong, stats = processes.run(ask_again, whole, rows).value
    assert wrong == []
    assert stats["misses"] == stats["errors"] == stats["corrupt"] == 0
    assert stats["hits_disk"] + stats["hits_memory"] == 2 * len(whole) + 2 * sum(
        len(keys) for _, keys, _ in rows
    )
