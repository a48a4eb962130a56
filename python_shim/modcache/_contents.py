# SPDX-License-Identifier: Apache-2.0
"""Contents of tensors that count no versions: those made under inference mode.

A write to one leaves no trace, so around a run they are compared by what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Read in full up to this many bytes in all, smallest tensors first (counters and statistics are
# small); of the others samples are read.
_MOST_BYTES = 64 << 20
_SAMPLES_PER_DIMENSION = 16


def contents_without_versions(tensors: Sequence[torch.Tensor]) -> dict[int, str]:
    """A digest for each of the inference tensors, by its place in ``tensors``."""
    places = [place for place, tensor in enumerate(tensors) if tensor.is_inference()]
    if not places:
        return {}
    found: dict[int, str] = {}
    room = _MOST_BYTES
    watch = int(torch.ops.cache._watch())
    try:
        for place in sorted(places, key=lambda place: _size_bytes(tensors[place])):
            tensor = tensors[place]
            room -= _size_bytes(tensor)
            torch.ops.cache._refresh(watch)
            seen = tensor if room >= 0 else _sampled(tensor)
            try:
                found[place] = str(torch.ops.cache._tensors_digest(watch, [seen]))
            except RuntimeError:  # sparse, for instance; its identity is compared
                continue
    finally:
        torch.ops.cache._unwatch(watch)
    return found


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # sparse ones have no nbytes


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor
    steps = (max(1, size // _SAMPLES_PER_DIMENSION) for size in tensor.shape)
    return tensor[tuple(slice(None, None, step) for step in steps)]
