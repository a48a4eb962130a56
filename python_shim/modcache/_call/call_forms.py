# SPDX-License-Identifier: Apache-2.0
"""What a function can tell of the form of a call, and of keywords that nobody asked for."""

from __future__ import annotations

import dis
import inspect
import types
from typing import Any


def tells_form(function: Any) -> bool:
    """Whether a function can do other things for ``f(x, k=2)`` than for ``f(x, 2)``.

    A function whose signature is that of its own code cannot. torch's own decorators (``no_grad``
    and similar ones) pass on what they get, so they do not count.
    """
    while is_of_torch(function):
        function = function.__wrapped__
    return (
        type(function) is not types.FunctionType
        or hasattr(function, "__wrapped__")
        or hasattr(function, "__signature__")
    )


def is_of_torch(function: Any) -> bool:
    """Whether torch's own decorator made this function, one that passes on what it gets."""
    if type(function) is not types.FunctionType or not hasattr(function, "__wrapped__"):
        return False
    module = function.__globals__.get("__name__")
    # Since torch 2.15 the code of this module's wrapper has the name of its context manager.
    return module == "torch.utils._contextlib" or (
        module == "torch.amp.autocast_mode" and function.__code__.co_name == "decorate_autocast"
    )


def reads_open(function: Any) -> bool:
    """Whether the code of a function may read what came as its ``**kwargs``."""
    while is_of_torch(function):
        function = function.__wrapped__
    if type(function) is not types.FunctionType:
        return True
    code = function.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS or not _FINDS_LOCALS.isdisjoint(code.co_names):
        return True
    place = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    name = code.co_varnames[place]
    return name in code.co_cellvars or any(
        step.argval == name or (isinstance(step.argval, tuple) and name in step.argval)
        for step in dis.get_instructions(code)
    )


# Functions by which code can read its variables without naming them.
_FINDS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})
