# SPDX-License-Identifier: Apache-2.0
"""What a module returned comes back bit for bit: any value, tier, codec and process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from growth import bytes_on_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import ProcessRunner
from torch import nn
from value_strategies import batches, exact, row_of, rows_of, values

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

# One cache serves all examples of a test: keys are never used twice.
EXAMPLES = settings(
    deadline=None,
    derandomize=True,
    max_examples=15,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=["mmap", "pread"])
def io(request: Any) -> str:
    modcache.configure(io=request.param)
    return str(request.param)


# What one process asked for, and what it got: (input as a list, key or keys, the exact result).
Question = tuple[list[Any], Any, Any]

X = torch.zeros(1)


class Gives(nn.Module):
    """Gives what it was made with."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> Any:
        return self.value


class GivesRows(nn.Module):
    """Gives the rows of a batch that its input names."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch

    def forward(self, x: torch.Tensor) -> Any:
        return rows_of(self.batch, [int(number) for number in x[:, 0]])


class Refuses(nn.Module):
    def forward(self, x: Any) -> Any:
        raise AssertionError("there was a miss")


def ask_again(questions: list[Question]) -> tuple[list[Any], dict[str, int]]:
    """In another process: what the cache has to say, without any module."""
    results = []
    for x, key, expected in questions:
        try:
            result = modcache.lookup_or_run(Refuses(), torch.tensor(x), key, scope="s")
            same = (
                exact(result) == expected
                if isinstance(key, str)
                else [exact(row_of(result, row)) for row in range(len(key))] == expected
            )
        except AssertionError:
            same = False
        if not same:
            results.append(key)
    return results, modcache.stats()


def assert_another_process_knows(questions: list[Question], processes: ProcessRunner) -> None:
    modcache.flush()
    assert len(questions) >= EXAMPLES.max_examples
    wrong, stats = processes.run(
        ask_again, questions, env={f"MODCACHE_{name.upper()}": modcache.settings()[name]
                                   for name in ("io", "codec")}
    ).value  # fmt: skip
    assert wrong == []
    rows = sum(1 if isinstance(key, str) else len(key) for _, key, _ in questions)
    assert (stats["misses"], stats["hits_disk"] + stats["hits_memory"]) == (0, rows)
    assert stats["errors"] == stats["corrupt"] == 0


def test_one_key(
    codec: str, io: str, counted: Any, reopen: Callable[[], None], processes: ProcessRunner
) -> None:
    numbers = itertools.count()
    questions: list[Question] = []

    @EXAMPLES
    @given(st.lists(values, min_size=6, max_size=10))
    def comes_back(drawn: list[Any]) -> None:
        asked = [(str(next(numbers)), value, exact(value)) for value in drawn]
        counted()
        for tier in ("misses", "hits_memory", "hits_disk"):
            if tier == "hits_disk":
                reopen()
            for key, value, expected in asked:
                result = modcache.lookup_or_run(Gives(value), X, key, scope="s")
                assert exact(result) == expected
            growth = counted()
            assert growth.pop("stored", 0) == (len(asked) if tier == "misses" else 0)
            assert growth == {tier: len(asked)}
        questions.extend((X.tolist(), key, expected) for key, _, expected in asked)

    comes_back()
    assert_another_process_knows(questions, processes)


@st.composite
def rows_asked_for(draw: Any) -> tuple[int, Any, list[int], list[int]]:
    """How many rows are stored first, all rows there are, and two further batches of them."""
    stored, more = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    rows = st.lists(st.integers(0, stored + more - 1), min_size=1, max_size=8)
    return stored, draw(batches(stored + more)), draw(rows), draw(rows)


def test_one_key_for_each_row(
    codec: str, io: str, counted: Any, reopen: Callable[[], None], processes: ProcessRunner
) -> None:
    numbers = itertools.count()
    questions: list[Question] = []

    @EXAMPLES
    @given(st.lists(rows_asked_for(), min_size=3, max_size=4))
    def comes_back(drawn: list[tuple[int, Any, list[int], list[int]]]) -> None:
        asked = [(next(numbers), *batch) for batch in drawn]
        known: dict[int, set[int]] = {number: set() for number, *_ in asked}

        def ask(number: int, batch: Any, rows: list[int]) -> None:
            x = torch.tensor([[float(row)] for row in rows])
            keys = [f"{number}/{row}" for row in rows]
            expected = [exact(row_of(batch, row)) for row in rows]
            counted()
            result = modcache.lookup_or_run(GivesRows(batch), x, keys, scope="s")
            assert [exact(row_of(result, place)) for place in range(len(rows))] == expected
            missing = set(rows) - known[number]
            growth = counted()
            assert growth.pop("misses", 0) == growth.pop("stored", 0) == len(missing)
            assert sum(growth.values()) == len(rows) - len(missing)
            assert set(growth) <= {"hits_memory", "hits_disk"}
            known[number] |= missing
            questions.append((x.tolist(), keys, expected))

        for number, stored, batch, _, _ in asked:
            ask(number, batch, list(range(stored)))
        for number, _, batch, rows, _ in asked:
            ask(number, batch, rows)
        reopen()
        for number, _, batch, _, rows in asked:
            ask(number, batch, rows)

    comes_back()
    assert_another_process_knows(questions, processes)


@pytest.mark.parametrize("key", ["k", ["a", "b"]], ids=["one key", "per row"])
@pytest.mark.parametrize(
    "view",
    [
        lambda big: big[500:502, 3:9],
        lambda big: big.t()[7:9, ::100],
        lambda big: {"x": [big[:2, :1], big[0, :1].expand(2, 8)]},
    ],
    ids=["window", "column", "several"],
)
def test_only_the_viewed_part_of_a_big_storage_is_stored(
    view: Callable[[torch.Tensor], Any], key: Any, reopen: Callable[[], None]
) -> None:
    x = torch.tensor([[0.0], [1.0]])
    modcache.lookup_or_run(GivesRows(torch.zeros(2, 8)), x, key, scope="other")
    before = bytes_on_disk()
    value = view(torch.randn(1000, 1000))  # 4 MB
    module = GivesRows(value) if isinstance(key, list) else Gives(value)
    modcache.lookup_or_run(module, x, key, scope="s")
    assert modcache.stats()["bytes_memory"] < 10_000
    assert bytes_on_disk() - before < 40_000  # of which most are pages of the database
    reopen()
    assert exact(modcache.lookup_or_run(Refuses(), x, key, scope="s")) == exact(value)
