# SPDX-License-Identifier: Apache-2.0
"""The fast path of plain calls: tensors go in, and one tensor was stored for each key.

The compiled part makes one call of the library (python_shim/native/hits.h). It returns plain hits,
begins the runs of eager misses, and makes calls of scripted modules in full, and in mode ``off``
those of eager ones. For any other call it returns None and changes nothing: the full path handles
it, and every mistake of the caller. Both paths check the same of the module. Without the compiled
part every call takes the full path.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from modcache._call import eager
from modcache._call.facts import WITHOUT_GRAD
from modcache._call.function import function_of
from modcache._call.keys import checked_keys
from modcache._call.padding import WHOLE_ROWS
from modcache._call.ready_call import ReadyCall
from modcache._call.rows import row_count
from modcache._identity.module_state import Forget, GradPattern, states
from modcache._identity.scripted import native
from modcache._library import log
from modcache._library.compiled_part import guards

# Keyed by a scripted module's address: the module, its native part, the library's object for it,
# and that object's address.
_held: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], Any, int]] = {}


def held_by_library(module: Any) -> Any:
    """The library's object for a scripted module: an argument at each call would cost 20 us."""
    inner = native(module)
    entry = _held.get(id(module))
    if entry is not None and entry[0]() is module and entry[1]() is inner:
        return entry[2]
    held = torch.classes.cache.ScriptedModule(inner)
    forget = Forget(_held, id(module))
    _held[id(module)] = (weakref.ref(module, forget), weakref.ref(inner), held, held.address())
    return held


def _finds_nothing(*_: Any) -> None:
    return None


def _finder() -> Callable[[Any, Any, Any, Any, Any], Any]:
    if guards is None:
        return _finds_nothing
    library = torch.classes.cache.Run.library_calls_address()
    try:
        with _disable_current_modes():  # such as FakeTensorMode around the import
            tensor = torch.zeros(())
        types = (torch.Tensor, torch.nn.Parameter)
        guards.connect(library, tensor, *types, states, _held, torch.classes.cache.Run)
    except RuntimeError as reason:  # of another version than the library, or than this torch
        log.write(logging.WARNING, f"hits take the slow path, since {reason}")
        return _finds_nothing
    return guards.find_hit


Begun: Any = getattr(guards, "Begun", None)
"""The class of a call that was begun, which ``finished`` goes on with."""

fast_hit = _finder()
"""Called with (module, input, key, scope, method): the stored tensor; None: it is no plain hit.

Begun: an eager module's call was looked up, and something is missing, or no lone tensor is stored.
Of a scripted module the whole call is made, which may run the module; and so is that
of most eager modules in mode ``off``. NotImplemented: the call bypasses the cache and was counted,
and Python has to run it. With the key None only the mode ``off`` is answered.
"""

_IN_GRAD_MODE = GradPattern(0, (False,))
_run_at: Any = torch.classes.cache.Run.at


def finished(
    begun: Any, module: torch.nn.Module, input: Any, key: Any, scope: str, method: str
) -> tuple[bool, Any]:
    """Returns the value that was found, or runs the module and has the library keep the result.

    Returns False and the value; or True, and a list of rows that do not fit together. The module is
    then what its snapshot says, nothing in the call requires grad, and the input is tensors.
    ``begun``: NotImplemented for a call that bypasses the cache.
    """
    if begun is NotImplemented:
        return False, eager.run_plain(module, input, method)
    if not begun.has_run:
        is_apart, value = begun.is_apart, begun.value
        return eager.given_back(lambda _: module, is_apart, value, input, key, method)
    try:
        call = ReadyCall(
            module,
            module,
            function_of(module, method),
            method,
            is_named=bool(scope),
            address=begun.scope,
            pattern=_IN_GRAD_MODE if torch.is_grad_enabled() else WITHOUT_GRAD,
        )
        if not scope:
            call.note_recognized(call.state.recognize(module))
        if isinstance(key, str):
            return False, call.run_observed(input, begun)
        run = _run_at(begun.address())
        output, found = call.run_rows(input, row_count(checked_keys(key)), run, WHOLE_ROWS)
    except BaseException:
        begun.abandon()  # the exception may keep it alive while other threads wait for it
        raise
    if found is None:
        return False, output
    is_apart, value = found
    return eager.given_back(lambda _: module, is_apart, value, input, key, method)
