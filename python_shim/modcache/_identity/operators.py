# SPDX-License-Identifier: Apache-2.0
"""How a walk reads operators of ``torch.ops``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import CustomOpDef

from modcache._code.operators import (
    KERNELS,
    PARTS,
    Operator,
    definition_of,
    functions_inside,
    unseen_kernel_of,
)
from modcache._identity.kinds import NAMED, Mark, UnidentifiedError

if TYPE_CHECKING:
    from modcache._identity.walk import Walk

_OPERATOR = Mark("operator")


def look_at_operator(walk: Walk, value: Operator) -> None:
    reason = unseen_kernel_of(value.name)
    if reason:
        raise UnidentifiedError(reason)
    walk.leaves += (_OPERATOR, value.name)
    definition = definition_of(value.name)
    if definition is not None:
        look_at_definition(walk, definition)


def look_at_overload(walk: Walk, value: Any) -> None:
    """Reads ``torch.ops.namespace.name``, or one of its overloads."""
    walk.leaves += (NAMED, walk.named(type(value)), str(value))
    name = str(getattr(value, "_qualified_op_name", "") or value.name()).partition(".")[0]
    if definition_of(name) is not None or unseen_kernel_of(name):
        look_at_operator(walk, Operator(name))


def look_at_definition(walk: Walk, value: Any) -> None:
    walk.leaves += (_OPERATOR, str(value))
    for part in PARTS:
        walk.value(getattr(value, part, None))
    for device, kernel in getattr(value, KERNELS, {}).items():
        walk.leaves.append(device)
        walk.value(functions_inside(kernel))


def way_of_operator(kind: type) -> Callable[[Walk, Any], None] | None:
    """Finds the function that reads values of exactly this type; None for other types."""
    if kind is Operator:
        return look_at_operator
    if kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
        return look_at_overload
    return look_at_definition if kind is CustomOpDef else None
