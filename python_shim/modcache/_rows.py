# SPDX-License-Identifier: Apache-2.0
"""One key per row: the keys, the rows of an input, and rows that do not fit together."""

from __future__ import annotations

from typing import Any

import torch

from modcache._text import checked_text

RAGGED = ("error", "list", "pad")


def checked_keys(keys: object) -> list[str] | torch.Tensor:
    """Keys as the library takes them: texts, or int64 ids.

    Raises:
        TypeError: anything else than a sequence of str, a sequence of int, or an integer tensor.
        ValueError: an empty key is the library's to refuse; lone surrogates are refused here.
    """
    if isinstance(keys, torch.Tensor):
        return keys
    if type(keys).__module__ == "numpy" and hasattr(keys, "dtype") and keys.dtype.kind == "i":
        return torch.from_numpy(keys.astype("int64"))  # type: ignore[attr-defined]
    if not isinstance(keys, (list, tuple)):
        raise TypeError(
            f"key must be a str, or one key per row: a list of str, a list of int or an int64 "
            f"tensor; but got {type(keys).__name__}."
        )
    if not keys or type(keys[0]) is int:
        if not all(type(key) is int for key in keys):
            raise TypeError("key: a list of keys is either all str or all int.")
        return _ids(keys)
    return [checked_text(key, f"key[{row}]", '"image-000017"') for row, key in enumerate(keys)]


def _ids(keys: list[int] | tuple[int, ...]) -> torch.Tensor:
    for row, key in enumerate(keys):
        if not -(2**63) <= key < 2**63:
            raise ValueError(
                f"key[{row}] is {key}, but an id has 64 bits; pass all keys as text: str(id)."
            )
    return torch.tensor(keys, dtype=torch.int64)


def select_rows(value: Any, rows: list[int]) -> Any:
    """The given rows of every tensor in an input; what is no tensor goes to every row."""
    if isinstance(value, torch.Tensor):
        return torch.ops.cache._select_rows(value, rows)
    if isinstance(value, torch.Size):  # numbers alone
        return value
    if isinstance(value, tuple):
        parts = [select_rows(part, rows) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [select_rows(part, rows) for part in value]
    if isinstance(value, dict):
        return type(value)((key, select_rows(part, rows)) for key, part in value.items())
    return value


def checked_ragged(ragged: object) -> str:
    if ragged in RAGGED:
        return str(ragged)
    raise ValueError(f"ragged is {ragged!r}, but must be one of: {', '.join(RAGGED)}.")


def in_wanted_form(is_apart: bool, value: Any, ragged: str, who: str) -> Any:
    """A batch, as the caller wants rows of different shapes to be given back.

    Args:
        is_apart: ``value`` is a list of rows that do not fit together; else it is the batch.
        value: what the library gave.
        ragged: "error", "list" (of rows, always) or "pad" (a padded tensor and the lengths).
        who: the module and method, for messages.
    """
    if ragged == "error":
        if is_apart:
            raise ValueError(
                f"the rows that {who} returned do not fit into one batch: {_shapes_of(value)}. "
                'Pass ragged="list" for a list of rows, ragged="pad" for a tensor padded with '
                "zeros and the lengths, or pad the input to a fixed length."
            )
        return value
    if ragged == "list":
        return value if is_apart else _rows_of(value, who)
    return _padded(value if is_apart else _rows_of(value, who), who)


def _rows_of(batch: Any, who: str) -> list[Any]:
    if isinstance(batch, torch.Tensor):
        return list(batch.unbind(0))
    raise TypeError(
        f"ragged: {who} returned a {type(batch).__name__}, and only the rows of a Tensor can be "
        'told apart here; leave ragged at "error".'
    )


def _padded(rows: list[Any], who: str) -> tuple[torch.Tensor, torch.Tensor]:
    are_tensors = all(isinstance(row, torch.Tensor) and row.dim() > 0 for row in rows)
    if not are_tensors or len({row.shape[1:] for row in rows}) > 1:
        raise ValueError(
            f'ragged="pad": the rows that {who} returned must be tensors that differ in their '
            f"first size alone, but they are: {_shapes_of(rows)}."
        )
    lengths = torch.tensor([row.shape[0] for row in rows], dtype=torch.int64)
    longest = int(lengths.max()) if rows else 0
    padded = rows[0].new_zeros((len(rows), longest, *rows[0].shape[1:]))
    for target, row in zip(padded, rows, strict=True):
        target[: row.shape[0]] = row
    return padded, lengths


def _shapes_of(rows: list[Any]) -> str:
    """Of the first row, and of the first that is unlike it."""
    shapes = [
        str(list(row.shape)) if isinstance(row, torch.Tensor) else f"a {type(row).__name__}"
        for row in rows
    ]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is None:
        return f"all are {shapes[0]}, but their structures or plain values differ"
    return f"row 0 is {shapes[0]}, row {other} is {shapes[other]}"
