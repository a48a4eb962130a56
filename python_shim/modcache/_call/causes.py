# SPDX-License-Identifier: Apache-2.0
"""Facts about a module and its run that messages name as the cause of a refusal."""

from __future__ import annotations

import logging

import torch

from modcache._call.grad import count_requiring_grad, modules_in
from modcache._call.holder import Holder
from modcache._identity.module_state import ModuleState, SeenState
from modcache._identity.outline import Outline
from modcache._identity.records import ModuleRecord
from modcache._identity.walk import Walk
from modcache._library import log


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
