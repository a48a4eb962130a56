# SPDX-License-Identifier: Apache-2.0
"""Every function that takes keys takes the same kinds of them, and names a wrong one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from modcache._call.keys import checked_keys

X = torch.arange(12.0).reshape(3, 4)
INTEGERS = [
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
]


class Series:
    """As a pandas Series: NumPy reads it as an array, and its items have labels."""

    def __init__(self, items: Any) -> None:
        self._items = np.asarray(items)
        self.iloc = self._items

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __getitem__(self, label: Any) -> Any:
        raise KeyError(label)


IDS: dict[str, Any] = {
    **{str(dtype): torch.tensor([1, 2, 3]).to(dtype) for dtype in INTEGERS},
    "a column": torch.tensor([[1], [2], [3]]),
    "a column of uint8": torch.tensor([[1], [2], [3]], dtype=torch.uint8),
    "NumPy": np.array([1, 2, 3], dtype=">i4"),
    "a column of NumPy": np.array([[1], [2], [3]]),
    "every second of NumPy": np.arange(1, 7)[:3],
    "NumPy objects": np.array([1, 2, 3], dtype=object),
    "integers of NumPy": [np.uint8(1), 2, np.int64(3)],
    "tensors": [torch.tensor(1), torch.tensor(2, dtype=torch.uint8), 3],
    "a range": range(1, 4),
    "a series": Series([1, 2, 3]),
}
TEXTS: dict[str, Any] = {
    "bytes": [b"1", b"2", b"3"],
    "text and bytes": ["1", b"2", bytearray(b"3")],
    "NumPy": np.array(["1", "2", "3"]),
    "a column of NumPy": np.array([["1"], ["2"], ["3"]]),
    "NumPy bytes": np.array([b"1", b"2", b"3"]),
    "NumPy objects": np.array(["1", b"2", np.str_("3")], dtype=object),
    "a series": Series(["1", "2", "3"]),
}


def cached(module: Any) -> Any:
    return modcache.cached(module, key="ids", scope="s")


def called_in_block(keys: Any) -> Any:
    with modcache.keys(keys):
        return modcache.cached(Doubling(), scope="s")(X)


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


TAKERS: dict[str, Callable[[Any], Any]] = {
    "lookup_or_run": lambda keys: modcache.lookup_or_run(Doubling(), X, keys, scope="s"),
    "lookup_or_run_any": lambda keys: modcache.lookup_or_run_any(Doubling(), X, keys, scope="s"),
    "scripted": lambda keys: modcache.lookup_or_run(
        torch.jit.script(Doubling()), X, keys, scope="s"
    ),
    "a tuple": lambda keys: modcache.lookup_or_run(Doubling(), (X,), keys, scope="s"),
    "lazy": lambda keys: modcache.lookup_or_run(modcache.lazy(Doubling, scope="s"), X, keys),
    "cached": lambda keys: cached(Doubling())(X, ids=keys),
    "a key function": lambda keys: modcache.cached(Doubling(), key=lambda x: keys, scope="s")(X),
    "keys": called_in_block,
    "fill": lambda keys: modcache.fill(Doubling(), [(X, keys)], key=1, scope="s") and X * 2,
}


@pytest.mark.parametrize("taker", TAKERS)
def test_ids_of_all_kinds_are_the_keys_of_their_numbers(taker: str, counted: Any) -> None:
    modcache.lookup_or_run(Doubling(), X, ["1", "2", "3"], scope="s")
    counted()
    for name, keys in {**IDS, **TEXTS}.items():
        assert torch.equal(TAKERS[taker](keys), X * 2), name
        assert counted() == {"hits_memory": 3}, name


def test_what_looks_without_a_run_takes_them_too() -> None:
    modcache.lookup_or_run(Doubling(), X, ["1", "2", "3"], scope="s")
    for keys in (*IDS.values(), *TEXTS.values()):
        assert modcache.prefetch("s", keys) == 3
        assert modcache.explain(Doubling(), X, keys, scope="s").status == "hit"


def test_bytes_are_the_key_of_their_text(counted: Any) -> None:
    for key in ("é", "é".encode(), bytearray("é".encode())):
        assert torch.equal(modcache.lookup_or_run(Doubling(), X, key, scope="s"), X * 2)
        assert modcache.contains("s", key)  # type: ignore[arg-type]
    for key in (("é", 1), ("é".encode(), 1)):
        modcache.lookup_or_run(Doubling(), X, key, scope="s")
        assert modcache.contains("s", key)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 3}
    modcache.lookup_or_run(Doubling(), X, "7", scope="s")
    assert modcache.contains("s", 7)


def test_samples_have_the_same_kinds_of_keys(counted: Any) -> None:
    raw = [{"id": key} for key in ("a", b"a", np.str_("a"))]
    for sample in raw:
        assert list(modcache.CachedIterableDataset([sample], len, key="id", scope="s")) == [1]
    numbers = [{"id": key} for key in (7, np.uint8(7), torch.tensor(7), "7", b"7")]
    for sample in numbers:
        assert list(modcache.CachedIterableDataset([sample], len, key="id", scope="s")) == [1]
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 6}


def test_an_argument_that_the_target_reads_may_be_a_series(counted: Any) -> None:
    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor, names: Any) -> torch.Tensor:
            assert len(names) == len(x)
            return x + torch.tensor([len(name) for name in names])[:, None]

    module = modcache.cached(Named(), key="names", scope="s")
    module(X[:1], Series(["a"]))
    assert torch.equal(module(X, Series(["a", "bb", "ccc"])), X + torch.tensor([[1], [2], [3]]))
    assert counted()["misses"] == 3


def test_a_series_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    labels = [30, 10, 20]
    series = [
        pandas.Series(["1", "2", "3"], index=labels),
        pandas.Series([1, 2, 3], index=labels, dtype="Int64"),
        pandas.Series([1, 2, 3], index=labels, dtype="uint8"),
        pandas.Series(["1", "2", "3"], dtype="category"),
        pandas.Index(["1", "2", "3"]),
    ]
    for keys in series:
        checked = checked_keys(keys)
        assert list(map(str, checked)) == ["1", "2", "3"] or checked.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match=r"key\[1\] must be a str, but got"):
        checked_keys(pandas.Series(["1", None, "3"]))


BEYOND = 10**29
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "0-dim": (torch.tensor(3), ValueError, r"int64 .* got torch\.int64 \[\]\. For one key"),
    "0-dim uint8": (torch.tensor(3, dtype=torch.uint8), ValueError, r"got torch\.uint8 \[\]"),
    "two columns": (torch.ones(3, 2, dtype=int), ValueError, r"got torch\.int64 \[3, 2\]"),
    "floats": (torch.ones(3), ValueError, r"int64 tensor .* got torch\.float32 \[3\]"),
    "bools": (torch.ones(3, dtype=torch.bool), ValueError, r"got torch\.bool \[3\]"),
    "floats of NumPy": (np.ones(3), TypeError, r"list of str.* got ndarray of float64 \[3\]"),
    "a table": (np.array([["a", "b"]]), TypeError, r"got ndarray of <U1 \[1, 2\]"),
    "a series of floats": (Series([1.0]), TypeError, r"got Series of float64 \[1\]"),
    "a float": (1.5, TypeError, "key must be a str, or one key per row.* got float"),
    "a bool": (True, TypeError, "got bool"),
    "a dict": ({"a": 1}, TypeError, "got dict"),
    "a set": ({"a"}, TypeError, "got set"),
    "None": (None, TypeError, "got NoneType"),
    "None among text": (["a", None, "c"], TypeError, r"key\[1\] must be a str, but got NoneType"),
    "None among ids": ([1, None, 3], TypeError, r"key\[0\] is int and key\[1\] is NoneType"),
    "bool among ids": ([1, True, 3], TypeError, r"key\[0\] is int and key\[1\] is bool"),
    "NaN among text": (np.array(["a", np.nan], dtype=object), TypeError, r"key\[1\] .* got float"),
    "beyond": ([1, BEYOND], ValueError, rf"key\[1\] is {BEYOND}, .*not an int64.*str\(id\)"),
    "uint64": (torch.tensor([1, 2**63], dtype=torch.uint64), ValueError, rf"key\[1\] is {2**63}"),
    "uint64 of NumPy": (np.array([2**64 - 1], dtype="uint64"), ValueError, rf"is {2**64 - 1}"),
    "no UTF-8": (b"a\xff", ValueError, r"key is bytes .*not valid UTF-8 \(at position 1\).*hex"),
    "no UTF-8 in a list": (["a", b"\xff"], ValueError, r"key\[1\] is bytes"),
    "surrogates": (["a", "\udc80"], ValueError, r"key\[1\] must be valid Unicode"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("taker", [*TAKERS, "explain", "prefetch"])
def test_a_wrong_kind_says_what_was_given_and_what_is_valid(taker: str, name: str) -> None:
    keys, kind, says = WRONG[name]
    takers = {
        **TAKERS,
        "explain": lambda keys: modcache.explain(Doubling(), X, [] if keys is None else keys),
        "prefetch": lambda keys: modcache.prefetch("s", keys),
    }
    if keys is None and taker in ("keys", "explain"):
        pytest.skip("None stands for no keys there")
    with pytest.raises(kind, match=says):
        takers[taker](keys)


def test_a_single_integer_is_one_key_where_that_is_clear() -> None:
    assert torch.equal(cached(Doubling())(X, ids=7), X * 2)
    assert modcache.contains("s", "7")
    with pytest.raises(TypeError, match=r"got int\. For one key for the whole output pass text"):
        modcache.lookup_or_run(Doubling(), X, 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"key is {BEYOND}, .*not an int64.*str\(id\)"):
        cached(Doubling())(X, ids=BEYOND)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_a_recorded_program_takes_ids_of_any_integer_type(dtype: torch.dtype, counted: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Doubling()

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
            return modcache.lookup_or_run(self.inner, x, ids, scope="s")

    for given in (torch.tensor([1, 2, 3], dtype=dtype), torch.tensor([[1], [2], [3]], dtype=dtype)):
        program = torch.export.export(Model(), (X, given)).module()
        assert torch.equal(program(X, given), X * 2)
    assert torch.equal(modcache.lookup_or_run(Doubling(), X, ["1", "2", "3"], scope="s"), X * 2)
    assert counted()["hits_memory"] >= 3


def test_the_usual_kinds_cost_few_calls() -> None:
    """A str, an int64 tensor and a list of str are checked by a bounded number of calls."""
    keys: list[Any] = ["a", torch.arange(100), list(map(str, range(100)))]
    assert [_calls_of(checked_keys, key) for key in keys] <= [5, 2, 8]


def _calls_of(function: Callable[[Any], Any], argument: Any) -> int:
    calls = 0

    def note(frame: Any, event: str, given: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(argument)
    finally:
        sys.setprofile(before)
    return calls - 1  # the last one is sys.setprofile itself
