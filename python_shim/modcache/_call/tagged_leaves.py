# SPDX-License-Identifier: Apache-2.0
"""The tensors in a tagged value (``tagged``), and whether all of it can be stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def leaves_of(value: Any) -> Iterator[torch.Tensor]:
    """Finds the tensors of a tagged value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) is tuple and value[0] != "?":
        for part in value[-1]:
            yield from leaves_of(part)


def is_refused(value: Any) -> bool:
    """Whether a part of a tagged value cannot be stored."""
    if type(value) is not tuple:
        return False
    return value[0] == "?" or any(map(is_refused, value[-1]))
