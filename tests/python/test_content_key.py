# SPDX-License-Identifier: Apache-2.0
"""Content keys: the same for the same input everywhere, and different for any difference."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from content_layout import expected_key
from hypothesis import given
from hypothesis import strategies as st

ALL_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
DTYPES = [d for d in ALL_DTYPES if not str(d).startswith(("torch.q", "torch.bits"))]
X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def of_dtype(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Bytes of every kind in a tensor of any dtype; bools stay bools."""
    count = torch.Size(shape).numel() * dtype.itemsize
    data = torch.arange(count, dtype=torch.int64) * 37 % (2 if dtype == torch.bool else 256)
    return data.to(torch.uint8).view(dtype).reshape(shape)


# ----- the same for ever

GOLDEN = {
    "float32": (X, "922158bbf5ae267f9ceffe6b81b4153350ab6c514dbe283541655680f3b2b848"),
    "bfloat16, empty": (
        torch.empty(0, 3, dtype=torch.bfloat16),
        "2c15b0f362087b1da2b74359211f62566f6fb0fb184b6b255c8477cbeee157d3",
    ),
    "uint8, no dimension": (
        torch.tensor(7, dtype=torch.uint8),
        "d8f5b4bd2fe6457d81bd71bd1f7330bf72a27fb7751c40bde528041b7936c235",
    ),
    "everything": (
        (
            torch.tensor([True, False]),
            [1, -1, True, None],
            {"scale": 0.5, "side": "left", 3: [torch.tensor([1 + 2j])]},
            (),
            -0.0,
            2 - 1j,
            "h\u00e9",
            torch.device("cuda:1"),
        ),
        "fede8f092f7cec9352fca7042913fab88b9fedbba572748314ccbc78aa518376",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_key_never_changes(name: str) -> None:
    value, key = GOLDEN[name]
    assert modcache.content_key(value) == key
    assert expected_key(value) == key


# ----- what is covered


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (0, 4), (2, 1, 5)], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = of_dtype(dtype, *shape)
    assert modcache.content_key(x) == expected_key(x)
    turned = x.permute(list(reversed(range(x.dim()))))
    assert modcache.content_key(turned) == expected_key(turned)
    if shape:
        rows = [expected_key(x[i]) for i in range(shape[0])]
        assert modcache.content_keys(x) == rows
        assert modcache.content_keys(turned) == [expected_key(row) for row in turned.unbind()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_the_same_bytes_differ(dtype: torch.dtype) -> None:
    x = torch.zeros(48, dtype=torch.uint8).view(dtype)
    others = [d for d in DTYPES if d != dtype]
    keys = {modcache.content_key(torch.zeros(48, dtype=torch.uint8).view(d)) for d in others}
    assert modcache.content_key(x) not in keys
    assert len(keys) == len(others)


plain_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from([torch.device("cpu"), torch.device("cuda", 1)])
)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(of_dtype, st.sampled_from(DTYPES)).map(lambda x: x) | st.builds(
    lambda dtype, shape: of_dtype(dtype, *shape), st.sampled_from(DTYPES), shapes
)
keys_of_dicts = st.text("ab", max_size=2) | st.integers(0, 2) | st.none()


def trees_of(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda parts: (
            st.lists(parts, max_size=3)
            | st.lists(parts, max_size=3).map(tuple)
            | st.dictionaries(keys_of_dicts, parts, max_size=3)
        ),
        max_leaves=8,
    )


@given(trees_of(plain_values | tensors))
def test_any_tree_is_hashed_as_the_format_says(tree: Any) -> None:
    assert modcache.content_key(tree) == expected_key(tree)


def replaced(tree: Any, change: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(replaced(part, change) for part in tree)
    if isinstance(tree, dict):
        return {key: replaced(part, change) for key, part in tree.items()}
    return tree


@given(st.integers(0, 3), st.data())
def test_the_key_of_a_row_is_that_of_the_input_with_this_row(
    rows: int, data: st.DataObject
) -> None:
    batched = st.builds(
        lambda dtype, shape: of_dtype(dtype, rows, *shape), st.sampled_from(DTYPES), shapes
    )
    tree = (data.draw(batched), data.draw(trees_of(plain_values | batched)))
    assert modcache.content_keys(tree) == [
        modcache.content_key(replaced(tree, lambda x, i=i: x[i])) for i in range(rows)
    ]


APART = {
    "nesting of lists": ([1, [2]], [[1], 2], [[1, 2]], [1, 2], [[1], [2]], [[], 1, 2]),
    "kinds of sequences": ([1, 2], (1, 2), {1: 2}, [(1, 2)]),
    "text": (("a", "bc"), ("ab", "c"), ("abc",), ("abc", ""), ("", "abc"), ("a\0", "bc")),
    "shapes": tuple(torch.zeros(s) for s in [(2, 3), (3, 2), (6,), (1, 6), (6, 1), (2, 3, 1)]),
    "shapes without elements": tuple(torch.zeros(s) for s in [(0,), (0, 1), (1, 0), (0, 2)]),
    "numbers": (1, True, 1.0, 1 + 0j, "1", torch.tensor(1), torch.tensor(1.0), torch.tensor([1])),
    "nothing": (None, False, 0, 0.0, "", (), [], {}, torch.zeros(0), (None, None)),
    "bits of floats": (0.0, -0.0, float("nan"), -float("nan"), float("inf"), 5e-324),
    "bits of tensors": (
        torch.tensor([0.0]),
        torch.tensor([-0.0]),
        torch.tensor([float("nan")]),
        torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
    ),
    "order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1}),
    "keys of a dict": ({1: 0}, {"1": 0}, {True: 0}, {1.0: 0}, {None: 0}),
    "places of tensors": ((X, 1), (1, X), (X, X), (X, (1,)), ((X, 1), 1), [X, 1]),
    "devices": (torch.device("cpu"), torch.device("cuda"), torch.device("cuda:0"), "cpu"),
}


@pytest.mark.parametrize("name", APART)
def test_what_differs_has_other_keys(name: str) -> None:
    assert len({modcache.content_key(value) for value in APART[name]}) == len(APART[name])


def test_each_bit_counts() -> None:
    data = torch.zeros(300, dtype=torch.uint8)
    keys = {modcache.content_key(data)}
    for i, bit in itertools.product(range(300), range(8)):
        changed = data.clone()
        changed[i] = 1 << bit
        keys.add(modcache.content_key(changed))
    assert len(keys) == 1 + 300 * 8


# ----- what is not

SAME = {
    "transposed": (X.t().contiguous(), X.t()),
    "a view with an offset": (X[1:, 1:].clone(), X[1:, 1:]),
    "expanded": (torch.ones(4, 3), torch.ones(1, 3).expand(4, 3)),
    "channels last": (
        torch.ones(2, 3, 4, 4).cumsum(3),
        torch.ones(2, 3, 4, 4).cumsum(3).contiguous(memory_format=torch.channels_last),
    ),
    "conjugated": (torch.tensor([1 - 2j]), torch.tensor([1 + 2j]).conj()),
    "negated": (torch.tensor([-2.0]), torch.tensor([1 + 2j]).conj().imag),
    "all zeros, without memory": (torch.zeros(3), torch._efficientzerotensor(3)),
    "requires grad": (X, X.clone().requires_grad_()),
    "with a graph": (X * 1, (X.clone().requires_grad_() * 1)),
    "a parameter": (X, torch.nn.Parameter(X)),
    "one argument": (X, (X,)),
    "NumPy": (X, X.numpy()),
    "a number of NumPy as an array": (torch.tensor(1.5, dtype=torch.float64), np.array(1.5)),
    "a dict that remembers its order": ({"a": X}, collections.OrderedDict(a=X)),
    "a shape": ((2, 3), X.shape),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same_has_one_key(name: str) -> None:
    first, second = SAME[name]
    assert modcache.content_key(first) == modcache.content_key(second) == expected_key(first)


def test_an_inner_tuple_of_one_item_counts() -> None:
    assert modcache.content_key((X,)) != modcache.content_key(((X,),))
    assert modcache.content_key(((X,),)) != modcache.content_key([X])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_modes_do_not_count(mode: Any) -> None:
    with mode():
        assert modcache.content_key(X.t()) == expected_key(X.t().contiguous())
        assert modcache.content_key((X * 1).t()) == expected_key(X.t().contiguous())


# ----- rows


def test_an_empty_batch_has_no_keys() -> None:
    assert modcache.content_keys(torch.zeros(0, 3)) == []
    assert modcache.content_keys((torch.zeros(0, 3), {"n": 1})) == []
    assert modcache.content_keys(torch.zeros(2, 0)) == [expected_key(torch.zeros(0))] * 2


def test_equal_rows_have_equal_keys() -> None:
    keys = modcache.content_keys(torch.tensor([[1, 2], [3, 4], [1, 2]]))
    assert keys[0] == keys[2] != keys[1]
