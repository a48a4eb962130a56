# SPDX-License-Identifier: Apache-2.0
"""Methods of libraries that begin by putting their module into evaluation mode.

Such a call computes the same from either mode, and leaves its module in evaluation mode. So the
lookup of a method that is known for it (``_code/libraries.py``) begins with that step, too: the
call is identified by the mode in which it computes, and a hit leaves the module as a run would.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import torch

from modcache._call.facts import modules_in
from modcache._call.holder import Holder
from modcache._code.libraries import known_method
from modcache._code.wrapped import class_behind, is_cached, is_proxy_class, unwrapped, unwrapped_in
from modcache._identity.manifest import class_name
from modcache._identity.module_state import ModuleState


def begin_evaluation(module: torch.nn.Module, method: str) -> bool:
    """Puts a module into evaluation mode if its method is known to begin with that.

    Returns:
        Whether the method is known to compute without gradients.
    """
    function, owner = _function_behind(module, method)
    known = known_method(function)
    if known.infers and isinstance(owner, torch.nn.Module):
        if any(part.training for part in modules_in(owner)):
            owner.eval()
        for name in known.settled:
            if isinstance(_defined(type(owner), name), property):
                getattr(owner, name)
    return known.infers


def record_function(state: ModuleState, module: torch.nn.Module, method: str) -> None:
    """Records the function of a method, so that the compiled part may run or begin its calls.

    The record holds while the classes have these functions: that of the module's class, and for a
    cached instance that of the class behind. It also has the function without the cache, and
    whether it is not known to begin with evaluation (``KnownFunction`` in
    python_shim/native/hits.cpp).
    """
    cls = type(module)
    function = _defined(cls, method)
    if method in vars(module) or not isinstance(function, types.FunctionType):
        return
    known = state.functions.get(method)
    if known is not None and known[0]() is function:
        return
    runs: Any = function
    of_cached: tuple[Any, ...] = ()
    if is_cached(function):
        runs = unwrapped_in(cls, method)
        behind = class_behind(cls) if is_proxy_class(cls) else None
        of_behind = function if behind is None else getattr(behind, method, None)
        if not isinstance(runs, types.FunctionType) or unwrapped(of_behind) is not runs:
            return
        of_cached = (weakref.ref(runs), behind, weakref.ref(of_behind))
    state.class_name = class_name(module)
    state.functions[method] = (weakref.ref(function), not known_method(runs).infers, *of_cached)


def _function_behind(module: torch.nn.Module, method: str) -> tuple[Any, Any]:
    """Finds the function that runs, and the object that it gets first; None: there is none."""
    if not isinstance(module, Holder):
        if method in vars(module):
            return None, None
        return unwrapped(_defined(type(module), method)), module
    held = vars(module).get("forward")
    if isinstance(held, functools.partial) and len(held.args) == 2:  # a method of an object
        reference, function = held.args
        return function, reference() if isinstance(reference, weakref.ref) else None
    return unwrapped(held), None


def _defined(kind: type, name: str) -> Any:
    """What inspect.getattr_static finds in a class, for a tenth of its price."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None
