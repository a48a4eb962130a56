# SPDX-License-Identifier: Apache-2.0
"""The fast path of plain calls: tensors go in, and one tensor was stored for each key.

The compiled part asks the library in one call (python_shim/native/hits.h). It answers plain hits,
begins eager misses with one key (_call/begun.py), and makes calls of scripted modules with one key
in full. Every other call gets None, and nothing has changed then: the full path handles it, and
every mistake of the caller. Both paths check the same of the module. Without the compiled part
every call takes the full path.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from modcache._identity.module_state import Forget, states
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
        take_result = torch.classes.cache.Run.take_result
        guards.connect(library, tensor, *types, states, _held, take_result)
    except RuntimeError as reason:  # of another version than the library, or than this torch
        log.write(logging.WARNING, f"hits take the slow path, since {reason}")
        return _finds_nothing
    return guards.find_hit


Begun: Any = getattr(guards, "Begun", None)
"""The class of a call that was begun, which ``_call/begun.py`` goes on with."""

fast_hit = _finder()
"""Called with (module, input, key, scope, method): the stored tensor; None: it is no plain hit.

Begun: an eager module's call with one key was looked up, and nothing is stored, or no lone tensor.
Of a scripted module with one key, the whole call is made, which may run the module.
NotImplemented: the mode is ``off``. The call was counted, and is to be run without the cache.
"""
