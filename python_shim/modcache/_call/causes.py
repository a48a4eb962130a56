# SPDX-License-Identifier: Apache-2.0
"""Facts about a module and its run that messages name as the cause of a refusal."""

from __future__ import annotations

import torch

from modcache._call.holder import Holder
from modcache._identity.module_state import SeenState
from modcache._identity.records import ModuleRecord


def is_in_training(module: torch.nn.Module, before: SeenState | None) -> bool:
    """Whether any module in reach is in training mode. ``before``: a look at all of them."""
    if before is None:
        return not isinstance(module, Holder) and any(part.training for part in module.modules())
    return any(
        record.is_in_training() and record.named.cls() is not Holder
        for record in before.walk.own_leaves()
        if isinstance(record, ModuleRecord)
    )


def is_checkpointed(module: torch.nn.Module) -> bool:
    """Whether gradient checkpointing is on, as Hugging Face and diffusers note it."""
    return any(getattr(part, "gradient_checkpointing", False) is True for part in module.modules())


def with_cure(change: str, module: torch.nn.Module) -> str:
    """Says of a ``change`` that a run made in the module how to avoid it, where that is known."""
    if not change.startswith("attribute 'training' of "):
        return change
    mode, cure = ("training", "train()") if module.training else ("evaluation", "eval()")
    return (
        f"its run put the module into {mode} mode ({change}); call m.{cure} before, then this call "
        "is kept like those after it"
    )
