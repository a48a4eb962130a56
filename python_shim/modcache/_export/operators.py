# SPDX-License-Identifier: Apache-2.0
"""The shapes of the results of operators in exported and compiled programs."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from modcache._call.rows import check_sizes


@torch.library.register_fake("cache::_probe")  # type: ignore[untyped-decorator]
def _probe(
    ids: torch.Tensor | None,
    tensors: list[torch.Tensor],
    inputs: int,
    sizes: list[int],
    recorded_call: str,
) -> torch.Tensor:
    if ids is not None:
        check_sizes(ids, tensors[:inputs])
    return torch.empty((), dtype=torch.int64, device="cpu")


@torch.library.register_fake("cache::_fetch")  # type: ignore[untyped-decorator]
def _fetch(
    handle: torch.Tensor, beside: torch.Tensor, sizes: list[int], dtypes: str
) -> list[torch.Tensor]:
    """Makes tensors for ``dtypes``, as "float32:2,int64:1,". ``sizes``: their number, all sizes."""
    found = []
    rest = iter(sizes[1:])
    for one in dtypes.split(",")[:-1]:
        name, _, dimensions = one.partition(":")
        shape = list(itertools.islice(rest, int(dimensions)))
        found.append(torch.empty(shape, dtype=getattr(torch, name), device=beside.device))
    return found


@torch.library.register_fake("cache::_put")  # type: ignore[untyped-decorator]
def _put(handle: torch.Tensor, values: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(value.shape, dtype=value.dtype, device=value.device) for value in values]


def _gradient_of_put(context: Any, grads: list[torch.Tensor]) -> tuple[None, list[torch.Tensor]]:
    """Passes gradients on: after a miss the program has run the module."""
    return None, grads


torch.library.register_autograd("cache::_put", _gradient_of_put)
