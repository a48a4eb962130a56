# SPDX-License-Identifier: Apache-2.0
"""The short way to a hit in memory, for one tensor and one key.

Whatever is not just that is answered with None, and has changed nothing: the long way deals with
it, and with every mistake of the caller's. What is checked of the module is the same on both.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from modcache._compiled_part import may_recall
from modcache._identity import Forget, GradPattern, ModuleState, states
from modcache._scripted import native

_functorch: Any = torch._C._functorch
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = _functorch.get_dynamic_layer_stack_depth
_is_wrapped = _functorch.is_functorch_wrapped_tensor
_tracing = torch._C._get_tracing_state
_is_grad_enabled = torch.is_grad_enabled
# Operators as torch calls them in the end: the way there costs as much as the work.
_recall: Any = torch.ops.cache._recall.default._op
_recall_scripted: Any = torch.ops.cache._recall_scripted.default._op
_NONE: list[torch.Tensor] = []
# Of a call in which neither module nor input requires grad.
_PLAIN_PATTERNS = frozenset({GradPattern(0, ()), GradPattern(0, (False,))})
_Tensor = torch.Tensor
_ScriptModule = torch.jit.ScriptModule


def recalled(module: Any, input: Any, key: Any, scope: Any, method: Any) -> torch.Tensor | None:
    """The stored result; None for every call that is not a plain hit in memory."""
    if type(input) is not _Tensor or type(scope) is not str or type(method) is not str or not key:
        return None
    is_ascii = key.isascii() and scope.isascii() and method.isascii()
    if not is_ascii and not _is_text(key, scope, method):
        return None
    if _dispatch_modes() or _function_modes() or _transforms() or _is_wrapped(input):
        return None
    if _tracing() is not None:
        return None
    entry = states.get(id(module))
    if entry is None or entry[0]() is not module:
        if not isinstance(module, _ScriptModule):
            return None
        number = _number_of(module)
        return _recall_scripted(number, scope, method, input, key)  # type: ignore[no-any-return]
    return _recalled_eager(entry[1], module, input, key, scope, method)


def _recalled_eager(
    state: ModuleState, module: Any, input: torch.Tensor, key: str, scope: str, method: str
) -> torch.Tensor | None:
    if state.is_wrapper or not _PLAIN_PATTERNS.isdisjoint(state.graph_patterns):
        return None
    if method != "forward" and not callable(getattr(module, method, None)):
        return None
    if scope and not _is_grad_enabled():
        return _recall(scope, method, input, key, _NONE, 0, "")  # type: ignore[no-any-return]
    known = state.known
    if known is None or not may_recall():
        return None
    tensors = known.snapshot.tensors()
    if tensors is None:
        return None
    if scope:
        return _recall(scope, method, input, key, tensors, 0, "")  # type: ignore[no-any-return]
    if not known.fingerprint:
        return None
    return _recall(  # type: ignore[no-any-return]
        known.fingerprint, method, input, key, tensors, state.watch, known.weights
    )


def _is_text(*texts: str) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


# Of scripted modules by their address: themselves, what is native of them, and its number.
_numbers: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], int]] = {}


def _number_of(module: Any) -> int:
    inner = native(module)
    entry = _numbers.get(id(module))
    if entry is not None and entry[0]() is module and entry[1]() is inner:
        return entry[2]
    number = int(torch.ops.cache._note_scripted(inner))
    forget = Forget(_numbers, id(module), torch.ops.cache._forget_scripted, number)
    _numbers[id(module)] = (weakref.ref(module, forget), weakref.ref(inner), number)
    return number
