# SPDX-License-Identifier: Apache-2.0
"""Whether the results of a recorded call consist of rows.

A recorded program cannot run its module on other rows, which is how eager calls see that
(csrc/module/call/row_proof.h). So it carries what is known when it is recorded: from eager calls,
or from a check run of the real module on made numbers. Where neither shows anything, the program
asks the directory when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modcache._call.tagged import tagged
from modcache._call.trials import unnoticed
from modcache._export.scope import UncachedCallError

# The field of a recorded call whose rows are proven (module/exported/exported.h).
PROVEN = "rows"
_FALLBACK_SIZE = 4  # of a dimension whose size the recorder does not know


def rows_field(
    scopes: list[str],
    method: str,
    arguments: str,
    arithmetic: str,
    who: str,
    real_module: Callable[[], torch.nn.Module],
    call: Callable[[torch.nn.Module, list[torch.Tensor]], Any],
    tensors: list[torch.Tensor],
) -> str:
    """Returns PROVEN, or "" where nothing is known.

    Args:
        scopes: the names that eager calls of the module may have.
        method: as they have it.
        arguments: as they have them.
        arithmetic: as they have it.
        who: the module and the method, for messages.
        real_module: returns the module with its real weights.
        call: runs the method on tensors in the place of ``tensors``.
        tensors: of the input, as the recorder has them.

    Raises:
        UncachedCallError: its results do not consist of rows.
    """
    for scope in scopes:
        is_proven, why_not = torch.classes.cache.Recording.seen_rows(
            scope, method, arguments, arithmetic
        )
        if why_not:
            raise UncachedCallError(why_not)
        if is_proven:
            return PROVEN
    try:
        module = real_module()
        made = [made_like(tensor) for tensor in tensors]
        with unnoticed(module):
            both = call(module, [tensor.clone() for tensor in made])
            alone = call(module, [tensor[1:] for tensor in made])
        if not all(map(_has_numbers, _tensors_in(both))):
            return ""
        is_proven, why_not = torch.classes.cache.Recording.judge_rows(
            who, tagged(both, is_rows=True), tagged(alone, is_rows=True), arithmetic
        )
    except UncachedCallError:
        raise
    except Exception:  # the module may not take made numbers
        return ""
    if why_not:
        raise UncachedCallError(why_not)
    return PROVEN if is_proven else ""


def made_like(tensor: torch.Tensor) -> torch.Tensor:
    """Makes two different rows in the form of a recorder's tensor.

    Integers are 0 and 1, since they may be indices.
    """
    shape = [2, *(_size_of(size) for size in tensor.shape[1:])]
    numbers = torch.arange(shape[0] * max(1, _product(shape[1:])))
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        numbers = (numbers + 1).double().sin()
    else:
        numbers = (numbers + numbers // max(1, _product(shape[1:]))) % 2
    if 0 in shape:
        numbers = numbers[:0]
    return numbers.reshape(shape).to(dtype=tensor.dtype, device=tensor.device)


def _size_of(size: int | torch.SymInt) -> int:
    if not isinstance(size, torch.SymInt):
        return size
    hint = size.node.hint  # asking for the number itself would fix it in the program
    return int(hint) if hint is not None else _FALLBACK_SIZE


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _tensors_in(value: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows anything: NaN, which made numbers may lead to, equals itself."""
    return not tensor.is_floating_point() or bool(tensor.float().isfinite().any())
