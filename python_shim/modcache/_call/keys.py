# SPDX-License-Identifier: Apache-2.0
"""Turns the keys that callers give into the keys that the library takes.

All functions that take keys call ``checked_keys``. Keys of samples, which are always one key, go
through ``key_text`` in _library/text.py.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from modcache._call.key_column import is_column, texts_of
from modcache._library.text import (
    FIRST_ID,
    LAST_ID,
    TupleKey,
    check_id,
    checked_key,
    checked_text,
    is_one_key,
    text_of_bytes,
    text_of_tuple_key,
)
from modcache._library.tracing import untraced


class _Array(Protocol):
    """Anything that NumPy can read as an array, such as a pandas Series."""

    def __array__(self) -> Any: ...


Keys = (
    str
    | bytes
    | TupleKey
    | Sequence[str]
    | Sequence[bytes]
    | Sequence[int]
    | Sequence[TupleKey]
    | torch.Tensor
    | _Array
)

_INTEGERS = frozenset(
    {
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    }
)
_WANTED = (
    "key must be a str, or one key per row: a list of str, a list of int or an int64 tensor of one "
    "dimension"
)


def checked_keys(keys: object) -> str | list[str] | torch.Tensor:
    """Returns one key (a str), or one key per row: a list of str, or an int64 tensor [B].

    Args:
        keys: one key: a str, bytes in UTF-8, or a tuple that mixes text and integers. One key per
            row: a sequence of these, a sequence of integers, an integer tensor [B] or [B, 1], the
            column of keys of a ``KeyedDataset``, or an array of text or integers, of NumPy or of a
            library that NumPy can read (a pandas Series).

    Raises:
        TypeError: something else.
        ValueError: a tensor of another dtype or shape, an integer beyond int64, or text that is not
            valid Unicode. Empty keys are found by the library.
    """
    kind = type(keys)
    if kind is torch.Tensor and keys.dtype is torch.int64 and keys.ndim == 1:  # type: ignore[attr-defined]
        return keys  # type: ignore[return-value]
    if kind is list and set(map(type, keys)) == {str}:  # type: ignore[call-overload]
        return _checked_texts(keys)  # type: ignore[arg-type]
    if isinstance(keys, str):
        return checked_text(keys, "key")
    if isinstance(keys, (bytes, bytearray)):
        return text_of_bytes(keys, "key")
    if isinstance(keys, torch.Tensor):
        with untraced():
            return _keys_of_tensor(keys)
    if isinstance(keys, tuple) and is_one_key(keys):
        return text_of_tuple_key(keys, "key")
    if isinstance(keys, Sequence):
        return _keys_of_list(list(keys))
    if hasattr(kind, "__array__") and not _is_scalar(keys):
        return _keys_of_array(keys)
    raise TypeError(f"{_WANTED}; but got {kind.__name__}.{_hint_for(keys)}")


def key_of_one_id(key: object) -> str:
    """Returns the key of one id, as text; "": it is not a single int, or one of NumPy.

    Raises ValueError if it is beyond int64.
    """
    if type(key) is not int:
        numpy: Any = sys.modules.get("numpy")
        is_scalar = numpy is not None and isinstance(key, (numpy.ndarray, numpy.integer))
        if not is_scalar or key.ndim:  # type: ignore[attr-defined]
            return ""
    number = operator.index(key)  # type: ignore[arg-type]
    check_id(number, "key")
    return str(number)


def ids_in_graph(keys: Any) -> Any:
    """Returns ids as int64 [B], by operators that torch.export records; other keys as they are."""
    if not isinstance(keys, torch.Tensor):
        return keys
    if keys.dim() == 2 and keys.shape[1] == 1:
        keys = keys.squeeze(1)
    is_other = keys.dtype in _INTEGERS and keys.dtype not in (torch.int64, torch.uint64)
    return keys.to(torch.int64) if is_other else keys


def _checked_texts(keys: list[str]) -> list[str]:
    try:
        "".join(keys).encode("utf-8")
    except UnicodeEncodeError:
        return [checked_text(key, f"key[{row}]", '"a"') for row, key in enumerate(keys)]
    return [*keys]


def _keys_of_tensor(keys: torch.Tensor) -> list[str] | torch.Tensor:
    if is_column(keys):
        return texts_of(keys)
    ids = keys.squeeze(1) if keys.dim() == 2 and keys.shape[1] == 1 else keys
    if ids.dtype not in _INTEGERS or ids.dim() != 1:
        hint = " For one key for the whole output pass text: str(int(id))." if not ids.dim() else ""
        raise ValueError(
            "ids must be an int64 tensor of one dimension, one id per row (other integer types and "
            f"[B, 1] are converted), but got {keys.dtype} {list(keys.shape)}.{hint}"
        )
    if ids.dtype is not torch.uint64:
        return ids.to(torch.int64)
    ids = ids.view(torch.int64)
    for row in (ids < 0).nonzero().flatten()[:1].tolist():
        check_id(int(ids[row]) + 2**64, f"key[{row}]")
    return ids


def _keys_of_array(keys: Any) -> list[str] | torch.Tensor:
    numpy: Any = importlib.import_module("numpy")
    array = numpy.asarray(keys)
    if array.dtype.kind in "iu":
        native = array.astype(array.dtype.newbyteorder("="), order="C")
        return _keys_of_tensor(torch.from_numpy(native))
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind not in "OSTU" or array.ndim != 1:
        raise TypeError(
            f"{_WANTED}; but got {type(keys).__name__} of {array.dtype} {list(array.shape)}."
        )
    return _keys_of_list(array.tolist())


def _keys_of_list(keys: list[Any]) -> list[str] | torch.Tensor:
    if set(map(type, keys)) <= {int}:
        return _ids(keys)
    if _is_id(keys[0]):
        for row, key in enumerate(keys):
            if not _is_id(key):
                raise TypeError(
                    "key: a list of keys is either all str or all int, but "
                    f"key[0] is {type(keys[0]).__name__} and key[{row}] is {type(key).__name__}."
                )
        return _ids([int(key) for key in keys])
    if any(isinstance(key, torch.Tensor) for key in keys):
        raise TypeError(
            "key: a list of keys holds a tensor. A DataLoader's default collate_fn turns tuples "
            "into columns; make them rows again: list(zip(names, numbers.tolist()))."
        )
    return [checked_key(key, f"key[{row}]") for row, key in enumerate(keys)]


def _ids(keys: list[int]) -> torch.Tensor:
    if keys and not (min(keys) >= FIRST_ID and max(keys) <= LAST_ID):
        for row, key in enumerate(keys):
            check_id(key, f"key[{row}]")
    with untraced():
        return torch.tensor(keys, dtype=torch.int64, device="cpu")


def _is_id(key: object) -> bool:
    """Whether it is an integer: an int, one of NumPy, or a 0-dim tensor."""
    if type(key) is int:
        return True
    if isinstance(key, torch.Tensor):
        return key.dim() == 0 and key.dtype in _INTEGERS
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(key, numpy.integer)


def _is_scalar(value: object) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _hint_for(keys: object) -> str:
    if not _is_id(keys):
        return ""
    return " For one key for the whole output pass text, str(id); for a batch of one, [id]."
