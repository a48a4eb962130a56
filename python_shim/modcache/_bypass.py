# SPDX-License-Identifier: Apache-2.0
"""Calls that the cache takes no part in, but counts.

Under a transform or a mode of torch a tensor is not what it seems: nothing is looked up or kept
there, and no operator of ours is called with such a tensor.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._device import DeviceContext

from modcache._inputs import is_subclass


def transform_in_force(input: Any) -> str:
    """What stands over this thread or the input ("under torch.vmap"); "" for nothing."""
    if torch._C._len_torch_dispatch_stack():
        mode = torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)
        return f"under {type(mode).__name__}"
    if torch._C._functorch.get_dynamic_layer_stack_depth() or _is_wrapped(input):
        return "under a transform of torch.func"
    return _function_mode()


def _function_mode() -> str:
    """A torch function mode may make any function of torch another; a default device does not."""
    for index in range(torch._C._len_torch_function_stack()):
        mode: Any = torch._C._get_function_stack_at(index)
        if type(mode) is not DeviceContext:
            return f"under {type(mode).__name__}"
    return ""


def is_traced() -> bool:
    """Whether torch.jit.trace is recording."""
    return torch._C._get_tracing_state() is not None


def _is_wrapped(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return torch._C._functorch.is_functorch_wrapped_tensor(value)
    if isinstance(value, dict):
        value = tuple(value.values())
    # Any deeper, the library itself sees it.
    return isinstance(value, (tuple, list)) and any(
        isinstance(part, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(part)
        for part in value
    )


def count_bypass(
    class_name: str, method: str, key: str | list[str] | torch.Tensor, why: str
) -> None:
    """Counts a call, or each of its rows, as bypassed, and has the library warn once of ``why``.

    An empty key is found here. Of ids only the number counts: they may be fake or batched.

    Raises:
        ValueError: an empty key. RuntimeError: with ``strict=true``.
    """
    with untraced():
        # The method stands where the message says what was called.
        text = f"{method} ({why})"
        if isinstance(key, str):
            torch.ops.cache._begin("", text, _no_value(), key, 0, 0, class_name=class_name)
            return
        keys = ["id"] * key.shape[0] if isinstance(key, torch.Tensor) else key
        torch.ops.cache._begin_rows("", text, _NO_DATA, keys, 0, 0, class_name=class_name)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Within it operators are run, and not recorded."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


_NO_DATA = torch.empty(0, device="meta")  # made here: under a mode it would be another one's


@functools.cache
def _no_value() -> torch.jit.ScriptModule:
    """Something that the library takes and refuses. A tensor might be batched, fake or traced."""
    return torch.jit.ScriptModule()


class _StandIn(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{function} on a value that is only looked at")


def seen_result(output: Any) -> Any:
    """What the library is shown of a result.

    The bytes of a tensor subclass may lack its meaning: a stand-in is refused and counted for it.
    """
    return torch.Tensor._make_wrapper_subclass(_StandIn, (0,)) if is_subclass(output) else output
