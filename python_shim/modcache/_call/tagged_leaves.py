# SPDX-License-Identifier: Apache-2.0
"""The tensors in a tagged value (``tagged``), and its form without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


def leaves_of(value: Any) -> Iterator[torch.Tensor]:
    """Finds the tensors of a tagged value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) is tuple and value[0] != "?":
        for part in value[-1]:
            yield from leaves_of(part)


def with_leaves(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Puts ``function(tensor)`` in the place of every tensor, in order."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) is tuple and value[0] != "?":
        return (*value[:-1], tuple(with_leaves(part, function) for part in value[-1]))
    return value


def is_refused(value: Any) -> bool:
    """Whether a part of a tagged value cannot be stored."""
    if type(value) is not tuple:
        return False
    return value[0] == "?" or any(map(is_refused, value[-1]))


def form_of(value: Any) -> str:
    """Describes all but the numbers and first sizes of the tensors in a tagged value."""
    return repr(with_leaves(value, lambda leaf: (leaf.dtype, *leaf.shape[1:])))
