# SPDX-License-Identifier: Apache-2.0
"""The short way to a hit in memory, for one tensor and one key.

Whatever is not just that is answered with None, and has changed nothing: the long way deals with
it, and with every mistake of the caller's. What is checked of the module is the same on both.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch

from modcache import _identity
from modcache._scripted import native

_C: Any = torch._C
_functorch: Any = _C._functorch
# Operators as torch calls them in the end: the way there costs as much as the work.
_recall: Any = torch.ops.cache._recall.default._op
_recall_scripted: Any = torch.ops.cache._recall_scripted.default._op
_mode: Any = torch.ops.cache.mode.default._op
_PLAIN_MODES = ("on", "read")
_NONE: list[torch.Tensor] = []


def recalled(module: Any, input: Any, key: Any, scope: Any, method: Any) -> torch.Tensor | None:
    """The stored result; None for every call that is not a plain hit in memory."""
    if type(input) is not torch.Tensor or type(scope) is not str or type(method) is not str:
        return None
    if not key or not (key.isascii() and scope.isascii() and method.isascii()):
        if not key or not _is_text(key + scope + method):
            return None
    if (
        _C._len_torch_dispatch_stack()
        or _functorch.get_dynamic_layer_stack_depth()
        or _C._get_tracing_state() is not None
        or _functorch.is_functorch_wrapped_tensor(input)
    ):
        return None
    if isinstance(module, torch.jit.ScriptModule):
        number = _number_of(module)
        return _recall_scripted(number, scope, method, input, key)  # type: ignore[no-any-return]
    return _recalled_eager(module, input, key, scope, method)


def _recalled_eager(
    module: Any, input: torch.Tensor, key: str, scope: str, method: str
) -> torch.Tensor | None:
    entry = _identity.states.get(id(module))
    if entry is None or entry[0]() is not module:
        return None
    state = entry[1]
    if state.is_wrapper or state.graph_patterns:
        return None
    if method != "forward" and not callable(getattr(module, method, None)):
        return None
    tensors, watch, weights = _NONE, 0, ""
    if not scope or _C.is_grad_enabled():
        known = state.known
        if known is None or _mode() not in _PLAIN_MODES:
            return None
        seen = known.snapshot.tensors()
        if seen is None:
            return None
        tensors = seen
        if not scope:
            if not known.fingerprint:
                return None
            scope, watch, weights = known.fingerprint, state.watch, known.weights
    return _recall(scope, method, "", input, key, tensors, watch, weights)  # type: ignore[no-any-return]


def _is_text(text: str) -> bool:
    try:
        text.encode()
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
    forget = _Forget(id(module), number)
    _numbers[id(module)] = (weakref.ref(module, forget), weakref.ref(inner), number)
    return number


class _Forget:
    """Called when a module dies. Takes no lock: it may run in the middle of anything."""

    def __init__(self, address: int, number: int) -> None:
        self._address = address
        self._number = number

    def __call__(self, reference: weakref.ref[Any]) -> None:
        entry = _numbers.get(self._address)
        if entry is not None and entry[0] is reference:
            _numbers.pop(self._address, None)
        with contextlib.suppress(Exception):  # at interpreter exit torch may be gone
            torch.ops.cache._forget_scripted(self._number)
