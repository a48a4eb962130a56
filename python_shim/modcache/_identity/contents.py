# SPDX-License-Identifier: Apache-2.0
"""Contents of tensors, as the library digests them.

A write to a tensor that counts no versions, as one made under inference mode, leaves no trace. So
the contents of such tensors are compared before and after a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from modcache._identity.kinds import UnidentifiedError
from modcache._library.text import first_line

# Tensors are read in full up to this many bytes in all, the smallest first (counters and statistics
# are small). The others are sampled.
_MOST_BYTES = 64 << 20
_SAMPLES_PER_DIMENSION = 16
TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_digest_of_watched: Any = torch.classes.cache.Watch.digest


def watched_digest(watch: Any, tensors: list[torch.Tensor]) -> str:
    """Digests the contents of tensors; hashes only those that may have changed.

    ``watch``: the ``torch.classes.cache.Watch`` that has seen the tensors of earlier calls.

    Raises:
        UnidentifiedError: one of them cannot be hashed.
    """
    try:
        return str(_digest_of_watched(watch, tensors))
    except (RuntimeError, NotImplementedError) as error:
        raise UnidentifiedError(first_line(error)) from None


def version_of(tensor: torch.Tensor) -> int | None:
    """Returns the count of writes to a tensor; None if it counts none."""
    return None if tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """The same of many tensors, of which few or none count no writes."""
    if any(map(torch.Tensor.is_inference, tensors)):
        return list(map(version_of, tensors))
    return [tensor._version for tensor in tensors]


def contents_without_versions(tensors: Sequence[torch.Tensor]) -> dict[int, str]:
    """Digests each of the inference tensors, by its place in ``tensors``."""
    places = [place for place, tensor in enumerate(tensors) if tensor.is_inference()]
    if not places:
        return {}
    found: dict[int, str] = {}
    room = _MOST_BYTES
    for place in sorted(places, key=lambda place: _size_bytes(tensors[place])):
        tensor = tensors[place]
        room -= _size_bytes(tensor)
        seen = tensor if room >= 0 else _sampled(tensor)
        with contextlib.suppress(UnidentifiedError):  # a sparse one: its identity is compared
            found[place] = watched_digest(torch.classes.cache.Watch(), [seen])
    return found


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # sparse ones have no nbytes


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor
    steps = (max(1, size // _SAMPLES_PER_DIMENSION) for size in tensor.shape)
    return tensor[tuple(slice(None, None, step) for step in steps)]
