# SPDX-License-Identifier: Apache-2.0
"""Calls that bypass the cache, and are only counted.

Under a transform or a mode of torch, a tensor may hold other values than it shows. Nothing is
looked up or kept there, and no operator of the library is called with such a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

from modcache._call.inputs import is_taken_as_it_is
from modcache._call.registered import parts_of
from modcache._code.objects import is_a
from modcache._library.tracing import is_traced, untraced


def transform_in_force(input: Any) -> str:
    """Names what changes torch in this thread or the input ("under torch.vmap"); "": nothing."""
    if torch._C._len_torch_dispatch_stack():
        mode = torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)
        return f"under {type(mode).__name__}"
    if torch._C._functorch.get_dynamic_layer_stack_depth() or _is_wrapped(input):
        return "under a transform of torch.func"
    return _function_mode()


def way_of(module: object, input: Any) -> tuple[str, bool]:
    """Why a call is not looked up ("": it is), and whether it is one for the operators alone."""
    why = transform_in_force(input)
    is_for_operators = isinstance(module, torch.jit.ScriptModule) and is_taken_as_it_is(input)
    if not why and is_traced() and not is_for_operators:
        why = "under torch.jit.trace"
    return why, is_for_operators


def _function_mode() -> str:
    """Names the torch function mode in force, which may change any function of torch.

    A default device is such a mode, too, and changes none.
    """
    for index in range(torch._C._len_torch_function_stack()):
        mode: Any = torch._C._get_function_stack_at(index)
        if type(mode) is not DeviceContext:
            return f"under {type(mode).__name__}"
    return ""


def _is_wrapped(value: Any) -> bool:
    if is_a(value, torch.Tensor):
        return torch._C._functorch.is_functorch_wrapped_tensor(value)
    # The library itself finds wrapped tensors at deeper levels.
    return any(
        is_a(part, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(part)
        for part in parts_of(value) or ()
    )


def count_bypass(
    class_name: str, method: str, key: str | list[str] | torch.Tensor, why: str
) -> None:
    """Counts a call, or each of its rows, as bypassed, and has the library warn once of ``why``.

    ``why`` completes "not caching X: ". An empty key is found here. Ids may be fake or batched, so
    only their number is used.

    Raises:
        ValueError: an empty key. RuntimeError: with ``strict=true``.
    """
    with untraced():
        if isinstance(key, str):
            _bypass(method, key, class_name, why)
            return
        keys = ["id"] * key.shape[0] if isinstance(key, torch.Tensor) else key
        _bypass_rows(method, keys, class_name, why)


def count_refused_rows(class_name: str, method: str, rows: int, why: str) -> None:
    """Counts the rows of a batch that cannot be cached by row; else as ``count_bypass``."""
    with untraced():
        _refuse_rows(method, rows, class_name, why)


# Methods without an object, which take no tensor: that might be batched, fake or traced.
_bypass: Any = torch.classes.cache.Run.bypass
_bypass_rows: Any = torch.classes.cache.Run.bypass_rows
_refuse_rows: Any = torch.classes.cache.Run.refuse_rows
