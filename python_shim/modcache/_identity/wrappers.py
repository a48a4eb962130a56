# SPDX-License-Identifier: Apache-2.0
"""Wrappers that do not change what a module computes: DDP, DataParallel, torch.compile.

A wrapper is transparent only if it is of exactly the known class, without forward hooks, and
without a method replaced on the instance. Any other wrapper is a module of its own.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def identified_as(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module inside the transparent wrappers around it."""
    while (inner := _inside(module)) is not None:
        module = inner
    return module


def runnable(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module to call.

    If no gradient is recorded, DDP has nothing to reduce, but it still communicates. A process that
    misses would wait forever for those that hit, so the module inside is called.
    """
    while type(module) is DistributedDataParallel and not torch.is_grad_enabled():
        inner = _inside(module)
        if inner is None:
            break
        module = inner
    return module


def _inside(module: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module in a transparent wrapper; None for every other module."""
    kind = type(module)
    if kind is DistributedDataParallel:
        inner: Any = module.module
        is_plain = module.mixed_precision is None  # it casts parameters and inputs
    elif kind is torch.nn.DataParallel:
        inner = module.module
        devices: Any = module.device_ids
        is_plain = len(devices) < 2  # else it splits the batch
    elif "torch._dynamo" in sys.modules and kind is _compiled_class():
        inner = module._modules.get("_orig_mod")
        is_plain = _is_compiled_forward(vars(module).get("forward"), inner)
    else:
        return None
    if not is_plain or not isinstance(inner, torch.nn.Module):
        return None
    replaced = vars(module).keys() & _methods_of(kind)
    if module._forward_hooks or module._forward_pre_hooks or replaced - {"forward"}:
        return None
    return None if "forward" in replaced and kind is not _compiled_class() else inner


def may_be_transparent(module: torch.nn.Module) -> bool:
    """Whether a module of this class may be identified as the one inside it."""
    kind = type(module)
    return kind in (DistributedDataParallel, torch.nn.DataParallel, _compiled_class())


def _compiled_class() -> Any:
    dynamo = sys.modules.get("torch._dynamo")  # importing it takes seconds
    return getattr(dynamo, "OptimizedModule", None)


def _is_compiled_forward(forward: Any, inner: Any) -> bool:
    """Whether torch.compile set this forward: the compiled ``__call__`` of ``inner``."""
    if not str(getattr(forward, "__globals__", {}).get("__name__")).startswith("torch._dynamo."):
        return False
    compiled: Any = getattr(forward, "_torchdynamo_orig_callable", None)
    compiled = getattr(compiled, "__self__", None) or compiled
    while compiled is not inner and hasattr(compiled, "__wrapped__"):
        compiled = compiled.__wrapped__
    return compiled is inner


@functools.cache
def _methods_of(kind: type) -> frozenset[str]:
    return frozenset(
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if callable(value) or isinstance(value, (staticmethod, classmethod, property))
    )
