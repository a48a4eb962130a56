# SPDX-License-Identifier: Apache-2.0
"""Facts about an eager module and its runs: what requires grad, and causes of a refusal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modcache._call.holder import Holder
from modcache._call.parts import tensors_in
from modcache._code.objects import is_a
from modcache._identity.known import Recognized
from modcache._identity.module_state import GradPattern, ModuleState, SeenState
from modcache._identity.records import ModuleRecord
from modcache._identity.walk import Outline, Walk
from modcache._library import log

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
    if type(output) is torch.Tensor or is_a(output, torch.Tensor):
        return output.requires_grad
    try:
        leaves = pytree.tree_leaves(output)
    except RecursionError:  # it holds itself, or is nested so deep that it is not stored
        return False
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


def is_in_training(module: torch.nn.Module, before: SeenState | None) -> bool:
    """Whether any module in reach is in training mode. ``before``: a look at all of them."""
    if before is None:
        return not isinstance(module, Holder) and any(part.training for part in modules_in(module))
    return _is_any_in_training(before.walk)


def was_in_training(outline: Outline) -> bool:
    """The same of a module that a snapshot recognized, which guards the mode of each part."""
    if outline.is_in_training is None:
        outline.is_in_training = _is_any_in_training(outline)
    return outline.is_in_training


def _is_any_in_training(seen: Walk | Outline) -> bool:
    return any(
        record.is_in_training() and record.named.cls() is not Holder
        for record in seen.own_leaves()
        if isinstance(record, ModuleRecord)
    )


def is_checkpointed(module: torch.nn.Module) -> bool:
    """Whether gradient checkpointing is on, as Hugging Face and diffusers note it."""
    return any(
        getattr(part, "gradient_checkpointing", False) is True for part in modules_in(module)
    )


def with_cure(change: str, module: torch.nn.Module) -> str:
    """Says of a ``change`` that a run made in the module how to avoid it, where that is known."""
    if not change.startswith("attribute 'training' of "):
        return change
    if isinstance(module, Holder):  # the mode is that of a module which the function uses
        return (
            f"its run switched a module between training and evaluation ({change}); switch it "
            "before, then this call is kept like those after it"
        )
    mode, cure = ("training", "train()") if module.training else ("evaluation", "eval()")
    return (
        f"its run put the module into {mode} mode ({change}); call m.{cure} before, then this call "
        "is kept like those after it"
    )


_MOST_COPIES = 3  # of a module that was not seen in training; new weights may be loaded once


def note_copy(module: torch.nn.Module, state: ModuleState, who: str) -> None:
    """Notes that results were stored under a fingerprint for the first time.

    Warns once of a module in training, whose every evaluation stores all results anew.
    """
    state.copies += 1
    is_enough = state.copies >= (2 if state.was_in_training else _MOST_COPIES)
    if state.has_warned_of_copies or not is_enough or not count_requiring_grad(module):
        return
    state.has_warned_of_copies = True
    log.write(
        logging.WARNING,
        f"{who} changes between calls, as in training, and is not frozen: its results were stored "
        f"anew under each of {state.copies} fingerprints, so calls under torch.no_grad() fill the "
        'cache and never hit. Evaluate it under modcache.mode("off"), or freeze it: '
        "m.requires_grad_(False)",
    )
