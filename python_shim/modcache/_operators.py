# SPDX-License-Identifier: Apache-2.0
"""Python functions behind operators that code calls through ``torch.ops``."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

_custom_ops: Any = getattr(torch._library, "custom_ops", None)


def definitions_behind(module: types.ModuleType, chain: tuple[str, ...]) -> Iterator[object]:
    """What ``torch.library.custom_op`` made of the operator that a chain of attributes names.

    ``chain`` are the attributes that are read one after the other, from ``module``.
    """
    path = chain if module is torch else ("ops", *chain) if module is torch.ops else ()
    if len(path) < 3 or path[0] != "ops":
        return
    known = getattr(_custom_ops, "OPDEFS", {})
    definition = known.get(f"{path[1]}::{path[2]}")
    if definition is not None:
        yield definition


def parts_of(value: object) -> tuple[str, list[object]] | None:
    """The name of such an operator and the functions behind it; None for anything else."""
    if _custom_ops is None or not isinstance(value, _custom_ops.CustomOpDef):
        return None
    functions = [value._init_fn, *getattr(value, "_backend_fns", {}).values()]
    return str(value._qualname), functions
