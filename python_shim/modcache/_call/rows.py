# SPDX-License-Identifier: Apache-2.0
"""One key per row: the keys, the rows of an input, and rows that do not fit together."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modcache._call.arguments import Arguments, PerRow
from modcache._call.carriers import are_images, is_array, is_tv_tensor, with_data
from modcache._call.parts import WHOLE, data_in, first_size, has_rows, is_of_every_row
from modcache._call.registered import (
    encodings_of,
    is_registered,
    rebuilt,
    taken_apart,
    with_attribute,
    with_encodings,
)
from modcache._call.tagged import UnknownClassError, tagged, untagged
from modcache._library.tracing import untraced

RAGGED = ("error", "list", "pad")


def texts_and_ids(
    keys: list[str] | torch.Tensor,
) -> tuple[list[str] | None, torch.Tensor | None]:
    """Checked keys, as methods of the library take them."""
    return (None, keys) if isinstance(keys, torch.Tensor) else (keys, None)


def row_count(keys: str | list[str] | torch.Tensor) -> int:
    """Returns the number of checked keys; WHOLE for one of the whole input."""
    if isinstance(keys, torch.Tensor):
        return keys.shape[0] if keys.dim() else 1
    return WHOLE if isinstance(keys, str) else len(keys)


def check_rows(input: Any, keys: list[str] | torch.Tensor) -> None:
    """Checks keys and rows of an input that the library does not get; it checks the others itself.

    Tensors inside objects of unknown classes are not found.

    Raises:
        ValueError: ids of a wrong type or shape, or a number of keys that is not that of the rows.
    """
    with untraced():
        _check_ids(keys)
        count, data = row_count(keys), list(data_in(input))
        if has_rows(input, count):
            data = [part for part in data if not is_of_every_row(part, count)]
        check_sizes(keys, data)


def check_sizes(keys: list[str] | torch.Tensor, data: Iterable[Any]) -> None:
    """Checks keys against tensors and arrays of an input, also while torch.export records them.

    Raises:
        ValueError: as ``check_rows``.
    """
    _check_ids(keys)
    count = row_count(keys)
    for part in data:
        if first_size(part) != count:
            raise ValueError(
                f"modcache.lookup_or_run: {count} keys were given, but a tensor of the input has "
                f"the shape {_shape_of(part)}; with one key per row, the first size of every "
                "tensor is the number of keys (for one key for the whole input, pass it as a str)"
            )


def _check_ids(keys: list[str] | torch.Tensor) -> None:
    if isinstance(keys, torch.Tensor) and (keys.dtype != torch.int64 or keys.dim() != 1):
        raise ValueError(
            "modcache.lookup_or_run: ids must be an int64 tensor of one dimension, one id per row, "
            f"but got {keys.dtype} {list(keys.shape)}"
        )


def _shape_of(data: Any) -> list[int]:
    if not isinstance(data, torch.Tensor):
        return list(data.shape)
    return [data.size(i) for i in range(1 if data.is_nested else data.dim())]


def select_rows(value: Any, rows: list[int], count: int) -> Any:
    """Takes the given rows of all data in an input of ``count`` rows; the rest belongs to each."""
    if isinstance(value, torch.Tensor):
        # The library has checked the rows of every tensor but those of ignored arguments.
        if value.dim() == 0 or value.size(0) != count:
            return value
        if is_tv_tensor(value):
            return with_data(value, select_rows(value.as_subclass(torch.Tensor), rows, count))
        return torch.ops.cache._select_rows(value, rows)
    if is_array(value):
        return value[rows] if value.ndim > 0 and value.shape[0] == count else value
    if isinstance(value, torch.Size):  # numbers alone
        return value
    if isinstance(value, PerRow):
        return value.selected(rows)
    if isinstance(value, list) and len(value) == count and are_images(value):
        return [value[row] for row in rows]
    if encodings := encodings_of(value):
        are_rows = len(encodings) == count
        value = with_encodings(value, [encodings[row] for row in rows] if are_rows else None)
    return _with_parts(value, lambda part: select_rows(part, rows, count))


def _with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuilds a container with changed parts; returns what is none."""
    if isinstance(value, Arguments):
        return value.with_values(map(change, value))
    if isinstance(value, tuple) and not is_registered(type(value)):
        kind, parts = type(value), [change(part) for part in value]
        # Like _make, since a named tuple's own __new__ may take other arguments than its fields.
        return tuple.__new__(kind, parts) if hasattr(kind, "_fields") else kind(parts)
    if type(value) is list:
        return [change(part) for part in value]
    if type(value) in (dict, OrderedDict):
        return type(value)((key, change(part)) for key, part in value.items())
    if isinstance(value, UserDict) and not is_registered(type(value)):
        items = vars(value)["data"]
        chosen = {key: change(part) for key, part in items.items()}
        return with_attribute(value, "data", chosen)
    if (apart := taken_apart(value)) is not None:
        return rebuilt(apart.kind, [change(part) for part in apart.parts], apart.context)
    return value


def with_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Puts ``function(tensor)`` in the place of every tensor of an input."""
    if isinstance(value, torch.Tensor):
        return function(value)
    return _with_parts(value, lambda part: with_tensors(part, function))


def with_data_changed(value: Any, function: Callable[[Any], Any]) -> Any:
    """Puts ``function(data)`` in the place of every tensor and NumPy array of an input."""
    if is_tv_tensor(value):
        return with_data(value, function(value.as_subclass(torch.Tensor)))
    if isinstance(value, torch.Tensor) or is_array(value):
        return function(value)
    return _with_parts(value, lambda part: with_data_changed(part, function))


def checked_ragged(ragged: object) -> str:
    if ragged in RAGGED:
        return str(ragged)
    raise ValueError(f"ragged is {ragged!r}, but must be one of: {', '.join(RAGGED)}.")


def in_wanted_form(is_apart: bool, value: Any, ragged: str, who: str) -> Any:
    """Gives rows of different shapes the form that the caller asked for.

    Args:
        is_apart: ``value`` is a list of rows that do not fit together; else it is the batch, as
            it is for "error".
        value: what the library gave.
        ragged: "error", "list" (of rows, always) or "pad" (a padded tensor and the lengths).
        who: the module and method, for messages.
    """
    if ragged == "error":
        return value
    rows = value if is_apart else _rows_of(value, who)
    if ragged == "list":
        return rows
    if not rows and isinstance(value, torch.Tensor) and value.dim() > 1:
        rows = [value.new_zeros((0, *value.shape[2:]))]
        padded, lengths = _padded(rows, who)
        return padded[:0], lengths[:0]
    return _padded(rows, who)


def why_apart(rows: list[Any]) -> str:
    """Says why rows do not fit into one batch, and what to do."""
    return (
        f"its rows do not fit into one batch: {_shapes_of(rows)}. "
        'Pass ragged="list" for a list of rows, ragged="pad" for a tensor padded with '
        "zeros and the lengths, or pad the input to a fixed length"
    )


def _rows_of(batch: Any, who: str) -> list[Any]:
    """Splits a batch into rows, also a batch that the module made whole.

    Plain values belong to every row.
    """
    if isinstance(batch, torch.Tensor) and batch.dim() > 0:
        return list(batch.unbind(0))
    parts = tagged(batch, is_rows=True)
    sizes = set(_first_sizes(parts))
    try:
        if len(sizes) == 1 and -1 not in sizes:
            return [untagged(_row_of(parts, row)) for row in range(sizes.pop())]
    except UnknownClassError:
        pass
    raise TypeError(
        f"ragged: {who} returned a {type(batch).__name__} that cannot be taken apart into rows: "
        "its tensors differ in their first size, or it holds none, or holds values of other "
        'classes; leave ragged at "error".'
    )


def _first_sizes(parts: Any) -> Iterator[int]:
    """The first size of each tensor in a tagged value; -1 for a value that has no rows."""
    if isinstance(parts, torch.Tensor):
        yield parts.size(0) if parts.dim() else -1
    elif isinstance(parts, tuple):
        if parts[0] == "?":
            yield -1
        else:
            for part in parts[-1]:
                yield from _first_sizes(part)


def _row_of(parts: Any, row: int) -> Any:
    if isinstance(parts, torch.Tensor):
        return parts[row]
    if isinstance(parts, tuple):
        return (*parts[:-1], tuple(_row_of(part, row) for part in parts[-1]))
    return parts


def _padded(rows: list[Any], who: str) -> tuple[torch.Tensor, torch.Tensor]:
    are_tensors = all(isinstance(row, torch.Tensor) and row.dim() > 0 for row in rows)
    if not rows or not are_tensors or len({row.shape[1:] for row in rows}) > 1:
        raise ValueError(
            f'ragged="pad": the rows that {who} returned must be tensors that differ in their '
            f"first size alone, but {_shapes_of(rows)}."
        )
    lengths = torch.tensor([row.shape[0] for row in rows], dtype=torch.int64)
    longest = int(lengths.max())
    padded = rows[0].new_zeros((len(rows), longest, *rows[0].shape[1:]))
    for target, row in zip(padded, rows, strict=True):
        target[: row.shape[0]] = row
    return padded, lengths


def _shapes_of(rows: list[Any]) -> str:
    """Describes the first difference between the first row and any other."""
    if not rows:
        return "there are none"
    pictures = [_picture(row) for row in rows]
    for number, picture in enumerate(pictures):
        for place in {**pictures[0], **picture}:
            one, other = pictures[0].get(place, _ABSENT), picture.get(place, _ABSENT)
            if one != other:
                name = f"{place} of " if place else ""
                shown = 1 if one[0] == other[0] else 0
                return f"{name}row 0 is {one[shown]}, {name}row {number} is {other[shown]}"
    shapes = [f"{place} {one[0]}".strip() for place, one in pictures[0].items()]
    return f"each row is {', '.join(shapes)}"


_ABSENT = ("absent", "absent")


def _picture(row: Any) -> dict[str, tuple[str, str]]:
    """Describes each leaf of a row, by its place: briefly, and in full."""
    leaves, _ = pytree.tree_flatten_with_path(row)
    return {pytree.keystr(path): _picture_of_leaf(leaf) for path, leaf in leaves}


def _picture_of_leaf(leaf: Any) -> tuple[str, str]:
    if isinstance(leaf, torch.Tensor):
        shape = str(list(leaf.shape))
        return shape, f"{shape} of {leaf.dtype} on {leaf.device}"
    text = repr(leaf)
    return text if len(text) <= 80 else f"{text[:77]}...", text
