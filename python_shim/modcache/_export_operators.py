# SPDX-License-Identifier: Apache-2.0
"""The shapes of what the operators of exported and compiled programs give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def sizes_of(dtypes: str, sizes: Sequence[int]) -> list[tuple[torch.dtype, list[int]]]:
    """The tensors that ``"float32:2,int64:1,"`` and their sizes, one after the other, describe."""
    found = []
    at = 0
    for one in dtypes.split(",")[:-1]:
        name, _, dimensions = one.partition(":")
        found.append((getattr(torch, name), list(sizes[at : at + int(dimensions)])))
        at += int(dimensions)
    return found


def check_ids(ids: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """What the library checks as well, at the time when a program is recorded."""
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(
            "modcache.lookup_or_run: ids must be an int64 tensor of one dimension, one id per row, "
            f"but got {ids.dtype} {list(ids.shape)}"
        )
    count = ids.shape[0]
    for tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != count:
            raise ValueError(
                f"modcache.lookup_or_run: {count} keys were given, but a tensor of the input has "
                f"the shape {list(tensor.shape)}; with one key per row, the first size of every "
                "tensor is the number of keys (for one key for the whole input, pass it as a str)"
            )


@torch.library.register_fake("cache::_probe")  # type: ignore[untyped-decorator]
def _probe(
    ids: torch.Tensor | None,
    tensors: list[torch.Tensor],
    inputs: int,
    sizes: list[int],
    site: str,
) -> torch.Tensor:
    if ids is not None:
        check_ids(ids, tensors[:inputs])
    return torch.empty((), dtype=torch.int64, device="cpu")


@torch.library.register_fake("cache::_fetch")  # type: ignore[untyped-decorator]
def _fetch(
    ticket: torch.Tensor, beside: torch.Tensor, sizes: list[int], dtypes: str
) -> list[torch.Tensor]:
    return [
        torch.empty(shape, dtype=dtype, device=beside.device)
        for dtype, shape in sizes_of(dtypes, sizes[1:])
    ]


@torch.library.register_fake("cache::_put")  # type: ignore[untyped-decorator]
def _put(ticket: torch.Tensor, values: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(value.shape, dtype=value.dtype, device=value.device) for value in values]


def _gradient_of_put(context: Any, grads: list[torch.Tensor]) -> tuple[None, list[torch.Tensor]]:
    """What is not cached keeps its gradient: the program runs the module then."""
    return None, grads


torch.library.register_autograd("cache::_put", _gradient_of_put)
