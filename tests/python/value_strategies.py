# SPDX-License-Identifier: Apache-2.0
"""Values of every kind, drawn by hypothesis, and the form in which they are compared bit for bit.

A tensor is drawn as bytes, so NaN payloads and negative zeros come up as often as any others.
"""

from __future__ import annotations

import collections
import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

_LEFT_OUT = re.compile(
    r"torch\.(qint.*|quint.*"  # quantized: these pass through
    r"|bits.*"  # untyped: these too
    r"|u?int[1-7])"  # torch itself can neither copy nor print them
)
DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not _LEFT_OUT.fullmatch(str(value))
    },
    key=str,
)
_SAME_SIZE = {
    1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128,
}  # fmt: skip

Pair = collections.namedtuple("Pair", "first second")


class Point(NamedTuple):
    x: Any
    y: Any
    z: Any


# --- tensors ------------------------------------------------------------------------------


def tensor_of(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A contiguous tensor whose bytes repeat the pattern."""
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size_bytes = count * dtype.itemsize
    raw = (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).clone()
    flat = flat % 2 == 1 if dtype == torch.bool else flat.view(dtype)
    return flat.reshape(shape)


def _transposed(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = tensor_of(pattern, dtype, shape[::-1])
    return tensor.permute(*reversed(range(len(shape)))) if shape else tensor


def _sliced(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = tensor_of(pattern, dtype, tuple(2 * size + 1 for size in shape))
    return tensor[tuple(slice(1, None, 2) for _ in shape)]


def _expanded(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return tensor_of(pattern, dtype, (*shape[:-1], 1)).expand(shape) if shape else _window(
        pattern, dtype, shape
    )  # fmt: skip


def _channels_last(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) != 4:
        return _transposed(pattern, dtype, shape)
    n, c, h, w = shape
    return tensor_of(pattern, dtype, (n, h, w, c)).permute(0, 3, 1, 2)


def _window(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    small = tensor_of(pattern, dtype, shape)
    big = torch.zeros(100_000, dtype=torch.uint8).view(dtype)
    window = big[77 : 77 + small.numel()]
    window.view(_SAME_SIZE[dtype.itemsize]).copy_(
        small.reshape(-1).view(_SAME_SIZE[dtype.itemsize])
    )
    return window.view(shape)


def _conjugated(pattern: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = tensor_of(pattern, dtype, shape)
    return tensor.conj() if dtype in (torch.complex64, torch.complex128) else tensor


_LAYOUTS = [tensor_of, _transposed, _sliced, _expanded, _channels_last, _window, _conjugated]
_sizes = st.integers(0, 4)


@st.composite
def tensors(draw: Any, rows: int | None = None) -> torch.Tensor:
    """A tensor; with ``rows`` a batch of so many."""
    shape = tuple(draw(st.lists(_sizes, max_size=4 if rows is None else 3)))
    if rows is not None:
        shape = (rows, *shape)
    dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(_LAYOUTS))
    return layout(draw(st.binary(min_size=1, max_size=64)), dtype, shape)  # type: ignore[no-any-return]


# --- plain values and nestings ---------------------------------------------------------------

_doubles = st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0])
floats = st.floats() | st.sampled_from([float("nan"), float("inf"), -0.0, 5e-324]) | _doubles
texts = st.text(max_size=6) | st.sampled_from(["", "größe", "鍵\x00🗝", "a" * 300])
int64s = st.integers(-(2**63), 2**63 - 1)
plain_values = (
    st.none() | st.booleans() | int64s | floats | st.builds(complex, floats, floats) | texts
)


def nestings(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Leaves in tuples, named tuples, lists and dicts of any depth."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.builds(Pair, inner, inner)
            | st.builds(Point, inner, inner, inner)
            | st.dictionaries(texts, inner, max_size=3)
            | st.dictionaries(int64s | texts, inner, max_size=3)
            | st.dictionaries(texts, inner, max_size=2).map(collections.OrderedDict)
        ),
        max_leaves=6,
    )


values = nestings(tensors() | plain_values)


def batches(rows: int) -> st.SearchStrategy[Any]:
    """A result for ``rows`` rows: tensors have the rows first; what is no tensor is for all."""
    return nestings(tensors(rows) | tensors(rows) | plain_values).filter(_has_tensor)


def _has_tensor(value: Any) -> bool:
    found: list[torch.Tensor] = []
    map_tensors(found.append, value)
    return bool(found)


# --- comparing ---------------------------------------------------------------------------


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if isinstance(value, dict):
        return type(value)((key, map_tensors(function, item)) for key, item in value.items())
    return value


def row_of(value: Any, row: int) -> Any:
    return map_tensors(lambda tensor: tensor[row], value)


def rows_of(value: Any, rows: list[int]) -> Any:
    """The given rows of a batch; the first ones are a view of it."""
    if rows == list(range(len(rows))):
        return map_tensors(lambda tensor: tensor[: len(rows)], value)

    def selected(tensor: torch.Tensor) -> torch.Tensor:
        shape = (len(rows), *tensor.shape[1:])  # torch's index_select lacks some dtypes
        bits = _bits(tensor).reshape(tensor.shape[0], -1)[rows]
        return bits.view(tensor.dtype).reshape(shape)

    return map_tensors(selected, value)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.view(_SAME_SIZE[tensor.dtype.itemsize]).contiguous()


def exact(value: Any) -> Any:
    """What is equal for two values exactly when types, structure, shapes and all bits are."""
    if isinstance(value, torch.Tensor):
        bits = _bits(value).numpy().tobytes()
        return (type(value).__name__, str(value.dtype), tuple(value.shape), bits)
    kind = type(value).__qualname__
    if isinstance(value, (tuple, list)):
        return (kind, [exact(item) for item in value])
    if isinstance(value, dict):
        return (kind, [(type(key).__name__, key, exact(item)) for key, item in value.items()])
    if isinstance(value, float):
        return (kind, struct.pack("<d", value))
    if isinstance(value, complex):
        return (kind, struct.pack("<dd", value.real, value.imag))
    return (kind, value)


def tensor_from(described: Any) -> torch.Tensor:
    """The tensor that ``exact`` described. Processes hand these over: a tensor takes a file."""
    _, dtype, shape, bits = described
    return tensor_of(bits, getattr(torch, dtype.removeprefix("torch.")), shape)
