# SPDX-License-Identifier: Apache-2.0
"""Calls that bypass the cache, and are only counted.

Under a transform or a mode of torch, a tensor may hold other values than it shows. Nothing is
looked up or kept there, and no operator of the library is called with such a tensor.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._device import DeviceContext

from modcache._call.inputs import is_taken_as_it_is
from modcache._call.padding import WHOLE_ROWS
from modcache._call.registered import parts_of
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
    if isinstance(value, torch.Tensor):
        return torch._C._functorch.is_functorch_wrapped_tensor(value)
    # The library itself finds wrapped tensors at deeper levels.
    return any(
        isinstance(part, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(part)
        for part in parts_of(value) or ()
    )


def count_bypass(
    class_name: str, method: str, key: str | list[str] | torch.Tensor, why: str
) -> None:
    """Counts a call, or each of its rows, as bypassed, and has the library warn once of ``why``.

    An empty key is found here. Ids may be fake or batched, so only their number is used.

    Raises:
        ValueError: an empty key. RuntimeError: with ``strict=true``.
    """
    with untraced():
        # The message of the library has the reason behind the method.
        text = f"{method} ({why})"
        if isinstance(key, str):
            _begin("", text, _no_value(), key, 0, None, class_name)
            return
        keys = ["id"] * key.shape[0] if isinstance(key, torch.Tensor) else key
        _begin_rows("", text, _NO_DATA, keys, None, 0, None, class_name, *WHOLE_ROWS)


_begin: Any = torch.classes.cache.Run.begin
_begin_rows: Any = torch.classes.cache.RowsRun.begin
_NO_DATA = torch.empty(0, device="meta")  # made at import: a mode would change it


@functools.cache
def _no_value() -> torch.jit.ScriptModule:
    """A value that the library refuses. A tensor might be batched, fake or traced."""
    return torch.jit.ScriptModule()
