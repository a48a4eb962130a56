# SPDX-License-Identifier: Apache-2.0
"""The tensors and arrays in a value, and which of them belong to every row of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from modcache._call.arguments import Arguments, PerRow
from modcache._call.carriers import are_images, is_array
from modcache._call.registered import parts_of
from modcache._code.objects import is_a

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
WHOLE = -1  # in place of a number of keys: one for the whole input
_MOST_DEPTH = 64
_PLAIN = frozenset({type(None), bool, int, float, str})


def is_subclass(value: Any) -> bool:
    return is_a(value, torch.Tensor) and type(value) not in PLAIN_TENSORS


def data_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Finds tensors and arrays in containers and registered values, in order."""
    if is_a(value, torch.Tensor) or is_array(value):
        yield value
    elif depth < _MOST_DEPTH:
        for part in parts_of(value) or ():
            yield from data_in(part, depth + 1)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Finds the tensors in containers and registered values, in order."""
    found: list[torch.Tensor] = []
    _add_tensors(value, found, 0)
    return found


def _add_tensors(value: Any, found: list[torch.Tensor], depth: int) -> None:
    if is_a(value, torch.Tensor):
        found.append(value)
    elif depth < _MOST_DEPTH and type(value) not in _PLAIN:
        for part in parts_of(value) or ():
            _add_tensors(part, found, depth + 1)


def has_rows(value: Any, count: int) -> bool:
    """Whether anything in an input has one row for each of ``count`` keys."""
    return count in _sizes_in(value, 0)


def count_of_rows(value: Any) -> int:
    """Returns the number of rows, if all data of an input have as many, or one; WHOLE: else."""
    sizes = set(_sizes_in(value, 0)) - {1}
    return sizes.pop() if len(sizes) == 1 else WHOLE


def _sizes_in(value: Any, depth: int) -> Iterator[int]:
    """Finds first sizes, as ``first_size``, and the lengths of lists that go row by row."""
    if is_a(value, torch.Tensor) or is_array(value):
        yield first_size(value)
    elif is_a(value, PerRow):
        yield len(value.items)
    elif type(value) is list and are_images(value):
        yield len(value)
    elif depth < _MOST_DEPTH:
        for part in parts_of(value) or ():
            yield from _sizes_in(part, depth + 1)


def is_of_every_row(data: Any, count: int) -> bool:
    """Whether a tensor or array of an input that ``has_rows`` belongs to all of them."""
    return count > 1 and first_size(data) == 1


def has_shared(value: Any, count: int) -> bool:
    """Whether an input of ``count`` rows has data that belong to all of them."""
    if type(value) is torch.Tensor:
        return False
    are_some = any(is_of_every_row(data, count) for data in data_in(value))
    return are_some and has_rows(value, count)


def has_unclear_list(value: Any, count: int) -> bool:
    """Whether an input has a list that may go row by row: of as many items, none with rows."""
    if type(value) is Arguments and value.told is not None:
        value = value.told
    arguments = value if is_a(value, tuple) else (value,)
    return any(_is_unclear(part, count, 0) for part in arguments)


def _is_unclear(value: Any, count: int, depth: int) -> bool:
    kind = type(value)
    if kind in _PLAIN or kind in PLAIN_TENSORS or depth > _MOST_DEPTH:
        return False
    if kind in (list, tuple) and len(value) == count and not are_images(value):
        return all(first_size(data) != count for data in data_in(value))
    return any(_is_unclear(part, count, depth + 1) for part in parts_of(value) or ())


def first_size(data: Any) -> int:
    """Returns the first size of a tensor or array; -1: it has none."""
    if is_a(data, torch.Tensor):
        return data.size(0) if data.dim() else -1
    return int(data.shape[0]) if data.ndim else -1
