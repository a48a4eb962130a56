# SPDX-License-Identifier: Apache-2.0
"""One key per row, with inputs, keys and results that are out of the ordinary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, List, Tuple  # noqa: UP035  (TorchScript reads these)

import modcache
import numpy as np
import pytest
import torch
from abandoned_runs import abandoned_run
from models import Python, UpTo, in_form
from torch import nn

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


def rows_of(value: Any, rows: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value[rows]
    if isinstance(value, dict):
        return {key: rows_of(part, rows) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(rows_of(part, rows) for part in value)
    return value


INPUTS: dict[str, tuple[Callable[..., torch.Tensor], Any]] = {
    "expanded": (lambda x: x * 2, torch.arange(4.0).expand(3, 4)),
    "transposed": (lambda x: x * 2, torch.arange(12.0).reshape(4, 3).t()),
    "every second": (lambda x: x * 2, torch.arange(48.0).reshape(6, 8)[::2, ::2]),
    "many dtypes": (lambda x, y, z: x + y * z, (X, X > 3, torch.ones(3, 1, dtype=torch.float64))),
    "list": (lambda parts: parts[0] - 2 * parts[1], [X, X.half()]),
    "dict": (lambda parts: parts["a"] * parts["k"] + parts["b"], {"a": X, "k": 3, "b": X + 1}),
    "nested": (lambda parts, n: parts[0] + parts[1]["x"] * n, ([X, {"x": X}], 2)),
    "a size": (lambda x, size: x * size.numel(), (X, torch.Size([3, 5]))),
    "an empty list": (lambda x, none: x + len(none), (X, [])),
    "one row each": (lambda x: x + 1, X[:, 0]),
    "no columns": (lambda x: x + 1, X[:, :0]),
    "conjugated": (lambda x: x * 2, torch.complex(X, X + 1).conj()),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_part_of_the_rows_is_run_as_all_of_them_are(name: str, counted: Any) -> None:
    give, value = INPUTS[name]
    module = Python(give)
    for rows, keys in (([0, 1], "ab"), ([2, 0, 1, 0], "caba"), ([1, 2], "bc")):
        part = rows_of(value, rows)
        wanted = module(*part) if isinstance(part, tuple) else module(part)
        result = modcache.lookup_or_run(module, part, list(keys), scope="s")
        assert result.dtype == wanted.dtype
        assert torch.equal(result, wanted)
    assert counted()["misses"] == 3


UNSTORABLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "opaque": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "meta": lambda x: x.to("meta"),
    "a set": lambda x: (x, {1}),
}


@pytest.mark.parametrize("keys", ["abc", "aba"])
@pytest.mark.parametrize("name", UNSTORABLE)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_cut_into_rows_passes_through(name: str, keys: str, counted: Any) -> None:
    modcache.configure(match="none")
    for _ in range(2):
        result = modcache.lookup_or_run(Python(UNSTORABLE[name]), X, list(keys), scope="s")
        assert type(result) is type(UNSTORABLE[name](X))
    assert counted() == {"bypassed_type": 6}, "each row once"


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the input": lambda x: x,
    "a view": lambda x: x[:, 1:3],
    "one tensor twice": lambda x: (x, x),
    "overlapping": lambda x: (x[:, :3], x[:, 1:]),
    "expanded": lambda x: x[:, :1].expand(-1, 5),
    "transposed": lambda x: x.t().contiguous().t(),
    "zeros that take no memory": lambda x: torch._efficientzerotensor(x.shape),
    "negated": lambda x: torch.complex(x, x).conj().imag,
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_results_that_share_memory(name: str, reopen: Any) -> None:
    module = Python(OUTPUTS[name])

    def tensors(value: Any) -> tuple[torch.Tensor, ...]:
        return value if isinstance(value, tuple) else (value,)

    for keys, rows in (("ab", [0, 1]), ("abc", [0, 1, 2]), ("cac", [2, 0, 2])):
        wanted = tensors(module(X[rows]))
        for _ in range(2):
            x = X[rows]
            result = tensors(modcache.lookup_or_run(module, x, list(keys), scope="s"))
            for given, right in zip(result, wanted, strict=True):
                assert torch.equal(given, right)
            x.fill_(-1)  # the first time this may be a part of the result
        for given in result:
            if not given._is_zerotensor():  # the module's own is immutable
                given.fill_(-2)
        reopen()


def test_ids_in_any_layout(counted: Any) -> None:
    module = Python(lambda x: x + 1)
    modcache.lookup_or_run(module, X, ["0", "2", "4"], scope="s")
    counted()
    numbers: list[Any] = [
        torch.arange(6)[::2],
        torch.tensor([[0, 1], [2, 3], [4, 5]])[:, 0],
        nn.Parameter(torch.tensor([0, 2, 4]), requires_grad=False),
        np.arange(6)[::2],
        np.array([0, 2, 4], dtype="int16"),
        (0, 2, 4),
    ]
    for ids in numbers:
        assert torch.equal(modcache.lookup_or_run(module, X, ids, scope="s"), X + 1)
        assert counted() == {"hits_memory": 3}
    assert torch.equal(
        modcache.lookup_or_run(module, X[[1] * 3], torch.tensor(2).expand(3), scope="s"),
        (X + 1)[[1] * 3],
    )


def test_plain_values_that_depend_on_the_number_of_rows_are_named_as_the_cause(
    capfd: pytest.CaptureFixture[str],
) -> None:
    module = type("CountsRows", (Python,), {})(lambda x: {"x": x, "rows": x.shape[0]})
    for rows in (X[:2], X):
        found = modcache.lookup_or_run(module, rows, KEYS[: len(rows)], scope="s")
        assert found["rows"] == len(rows)
    modcache.flush()
    assert "its plain values, or its structure, depend on the number of rows" in (
        capfd.readouterr().err
    )


def test_keys_of_a_megabyte_and_keys_that_are_nearly_the_same(reopen: Any, counted: Any) -> None:
    keys = ["x" * 1_000_000, "x" * 1_000_000 + "\0", "x" * 1_000_000 + "\0\0"]
    module = Python(lambda x: x * 2)
    modcache.lookup_or_run(module, X, keys, scope="s")
    reopen()
    counted()
    assert torch.equal(modcache.lookup_or_run(module, X, keys, scope="s"), X * 2)
    assert counted() == {"hits_disk": 3}


@pytest.mark.parametrize(
    "settings",
    [{"memory": "1KB"}, {"memory": "0"}, {"disk": "1MB", "memory": "0"}, {"disk": "1KB"}],
    ids=str,
)
def test_too_little_room_costs_runs_and_no_values(settings: dict[str, str]) -> None:
    modcache.configure(**settings)
    module = Python(lambda x: x * 2)
    for turn in range(3):
        x = torch.randn(48, 5000)
        keys = [f"{turn}-{row % 40}" for row in range(48)]
        x[40:] = x[:8]
        for _ in range(2):
            assert torch.equal(modcache.lookup_or_run(module, x, keys, scope="s"), x * 2)
        modcache.flush()


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


def test_later_runs_of_a_call_are_compared_with_what_was_before_the_first() -> None:
    x = torch.zeros(3, 1)
    with abandoned_run(lambda: modcache.lookup_or_run(ChangesOnce(), x[:1], KEYS[:1])) as runs:
        modcache.lookup_or_run(ChangesOnce(), x, KEYS)
        assert len(runs) > 1
    for row, key in enumerate(KEYS):
        assert modcache.lookup_or_run(ChangesOnce(), x[row : row + 1], [key]).item() == 0


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
def test_a_result_without_rows_of_a_batch_of_one_is_never_cached_by_row(face: str) -> None:
    module = in_form(Squeezes(), face)
    for rows in (X[:2], X, X[:1], X):
        found = modcache.lookup_or_run(module, rows, KEYS[: len(rows)])
        assert torch.equal(found, Squeezes()(rows))
    assert modcache.stats()["bypassed_rows"] == 9


def test_repeated_rows_of_a_list_are_ordinary_tensors() -> None:
    x = torch.tensor([[1.0, 9.0], [2.0, 9.0], [1.0, 9.0]])
    with torch.inference_mode():
        modcache.lookup_or_run(UpTo(), x[:2], ["a", "b"], ragged="list")
        rows = modcache.lookup_or_run(UpTo(), x, ["a", "b", "a"], ragged="list")
    assert [row.is_inference() for row in rows] == [False] * 3
