# SPDX-License-Identifier: Apache-2.0
"""Who requires grad in a call of an eager module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modcache._call.parts import tensors_in
from modcache._code.objects import is_a
from modcache._identity.known import Recognized
from modcache._identity.module_state import GradPattern, ModuleState

WITHOUT_GRAD = GradPattern(0, ())


def grad_pattern(
    module: torch.nn.Module,
    state: ModuleState | None,
    input: Any,
    seen: Recognized | None = None,
    *,
    is_named: bool = False,
) -> GradPattern:
    """Finds which tensors of the module and the input require grad.

    ``state`` None: the mode is off, and only parameters and buffers matter. ``seen``: the module as
    a snapshot recognized it, with all its tensors. ``is_named``: the caller named the scope.
    """
    if not torch.is_grad_enabled():
        return WITHOUT_GRAD
    if seen is not None and not any(t.requires_grad for t in seen.tensors):
        return GradPattern(0, _flags_of(input))
    flags = tuple(tensor.requires_grad for tensor in _tensors_of(module))
    if state is not None:
        flags += tuple(
            tensor.requires_grad for tensor in state.tensors_in_reach(module, is_named=is_named)
        )
    # The library only compares patterns for equality, within this process.
    return GradPattern(hash(flags) & 0x7FFF_FFFF_FFFF | 1 if any(flags) else 0, _flags_of(input))


def has_graph(output: Any) -> bool:
    """Whether any tensor in a result requires grad."""
    if is_a(output, torch.Tensor):
        return output.requires_grad
    leaves = pytree.tree_leaves(output)
    return any(tensor.requires_grad for leaf in leaves for tensor in tensors_in(leaf))


def count_requiring_grad(module: torch.nn.Module) -> int:
    return sum(tensor.requires_grad for tensor in _tensors_of(module))


def _flags_of(value: Any) -> tuple[bool, ...]:
    """Says of each tensor of an input, in order, whether it requires grad."""
    if is_a(value, torch.Tensor):
        return (value.requires_grad,)
    return tuple(tensor.requires_grad for tensor in tensors_in(value))


def modules_in(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and its submodules, faster than ``modules()``, also where they have no hash."""
    seen = set()
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [child for child in part._modules.values() if child is not None]


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers, faster than ``module.parameters()``."""
    for part in modules_in(module):
        for tensors in (part._parameters, part._buffers):
            yield from [tensor for tensor in tensors.values() if tensor is not None]
