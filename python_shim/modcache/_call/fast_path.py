# SPDX-License-Identifier: Apache-2.0
"""The fast path to a hit in memory, for one tensor and one key.

Every other call gets None, and nothing has changed then: the full path handles it, and every
mistake of the caller. Both paths check the same of the module.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from modcache._identity.module_state import Forget, GradPattern, ModuleState, states
from modcache._identity.scripted import native
from modcache._library.compiled_part import may_take_fast_path
from modcache._library.text import is_unicode

_functorch: Any = torch._C._functorch
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = _functorch.get_dynamic_layer_stack_depth
_is_wrapped = _functorch.is_functorch_wrapped_tensor
_tracing = torch._C._get_tracing_state
_is_grad_enabled = torch.is_grad_enabled
# Methods without an object. Looking one up costs as much as its work, so it is done once.
_fast_path: Any = torch.classes.cache.Run.fast_path
_scripted_fast_path: Any = torch.classes.cache.ScriptedModule.fast_path
_NONE: list[torch.Tensor] = []
# The patterns of calls in which neither module nor input requires grad.
_PLAIN_PATTERNS = frozenset({GradPattern(0, ()), GradPattern(0, (False,))})
_Tensor = torch.Tensor
_ScriptModule = torch.jit.ScriptModule


def fast_hit(module: Any, input: Any, key: Any, scope: Any, method: Any) -> torch.Tensor | None:
    """Returns the stored result; None for every call that is not a plain hit in memory."""
    if type(input) is not _Tensor or type(scope) is not str or type(method) is not str or not key:
        return None
    is_ascii = key.isascii() and scope.isascii() and method.isascii()
    if not is_ascii and not is_unicode(f"{key}{scope}{method}"):
        return None
    if _dispatch_modes() or _function_modes() or _transforms() or _is_wrapped(input):
        return None
    if _tracing() is not None:
        return None
    entry = states.get(id(module))
    if entry is None or entry[0]() is not module:
        if not isinstance(module, _ScriptModule):
            return None
        held = held_by_library(module)
        return _scripted_fast_path(held, scope, method, input, key)  # type: ignore[no-any-return]
    return _eager_hit(entry[1], module, input, key, scope, method)


def _eager_hit(
    state: ModuleState, module: Any, input: torch.Tensor, key: str, scope: str, method: str
) -> torch.Tensor | None:
    if state.is_wrapper or not _PLAIN_PATTERNS.isdisjoint(state.graph_patterns):
        return None
    if method != "forward" and not callable(getattr(module, method, None)):
        return None
    if scope and not _is_grad_enabled():
        return _fast_path(scope, method, input, key, _NONE, None, "")  # type: ignore[no-any-return]
    known = state.known
    if known is None or not may_take_fast_path():
        return None
    tensors = known.snapshot.tensors()
    if tensors is None:
        return None
    if scope:
        return _fast_path(scope, method, input, key, tensors, None, "")  # type: ignore[no-any-return]
    if not known.fingerprint:
        return None
    return _fast_path(  # type: ignore[no-any-return]
        known.fingerprint, method, input, key, tensors, state.watch, known.weights
    )


# Keyed by a scripted module's address: the module, its native part, the library's object for it.
_held: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], Any]] = {}


def held_by_library(module: Any) -> Any:
    """The library's object for a scripted module: an argument at each call would cost 20 us."""
    inner = native(module)
    entry = _held.get(id(module))
    if entry is not None and entry[0]() is module and entry[1]() is inner:
        return entry[2]
    held = torch.classes.cache.ScriptedModule(inner)
    forget = Forget(_held, id(module))
    _held[id(module)] = (weakref.ref(module, forget), weakref.ref(inner), held)
    return held
