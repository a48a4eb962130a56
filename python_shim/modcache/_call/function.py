# SPDX-License-Identifier: Apache-2.0
"""What a call of an eager module runs, and the scope that identifies it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from modcache._call import key_block
from modcache._call.arguments import Arguments
from modcache._call.holder import Holder
from modcache._code.wrapped import is_proxy_class, unwrapped_method
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.manifest import class_name
from modcache._identity.module_state import SeenState, state_of
from modcache._identity.scripted import fingerprint_of_method
from modcache._identity.wrappers import identified_as, runnable


def call_name_of(module: torch.nn.Module, method: str) -> str:
    """Names what a call runs, for messages: a cached function by itself, without its holder."""
    target = identified_as(module)
    name = class_name(target)
    return name if isinstance(target, Holder) else f"{name}.{method}"


def function_of(module: torch.nn.Module, method: str) -> Callable[..., Any]:
    target = identified_as(module)
    function: Any = unwrapped_method(target, method)
    if function:
        function = (method == "forward" and _compiled_in_place(target)) or function
    else:
        function = runnable(module) if method == "forward" else getattr(module, method, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise AttributeError(
        f"method={method!r}: {type(module).__qualname__} has no such method. "
        'Name one of its methods; the default is "forward".'
    )


def _compiled_in_place(module: torch.nn.Module) -> Callable[..., Any] | None:
    """Returns what ``compile`` made of the module behind a cached instance; None: nothing.

    It runs the module's hooks, too, which have run already if there are any.
    """
    compiled = vars(module).get("_compiled_call_impl")
    if compiled is None or not is_proxy_class(type(module)) or torch.compiler.is_compiling():
        return None
    return None if _has_hooks(module) else compiled


def _has_hooks(module: torch.nn.Module) -> bool:
    names = (
        "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks",
    )  # fmt: skip
    return any(
        getattr(module, name) or getattr(torch_module, f"_global{name}", None) for name in names
    )


def called_on(function: Callable[..., Any], input: Any) -> Any:
    """Runs a cached module outside of any block, whose keys do not fit a part of the rows."""
    if key_block.current() is not None:
        with key_block.suspended():
            return _passed_to(function, input)
    return function(input) if type(input) is torch.Tensor else _passed_to(function, input)


def _passed_to(function: Callable[..., Any], input: Any) -> Any:
    if type(input) is Arguments:
        return input.passed_to(function)
    return function(*input) if isinstance(input, tuple) else function(input)


CURE = "pass scope=... to name the module yourself"


def fingerprint_of_eager(module: torch.nn.Module, method: str = "forward") -> str:
    """Returns 32 hexadecimal digits. Raises TypeError if the module cannot be hashed."""
    function_of(module, method)
    try:
        state = state_of(module)
        seen = state.recognize(module)
        return state.look(module).fingerprint if seen is None else state.fingerprint_of(seen)
    except UnidentifiedError as reason:
        raise unidentified(module, reason) from reason.__cause__


def unidentified(module: torch.nn.Module, reason: UnidentifiedError) -> TypeError:
    name = getattr(module, "original_name", type(module).__qualname__)
    return TypeError(f"{name} has no fingerprint: {reason}; {CURE}.")


def refresh_fingerprint_of_eager(module: torch.nn.Module) -> str:
    """Returns the fingerprint after reading every byte of the module's tensors."""
    state_of(module).forget_weights()
    return fingerprint_of_eager(module)


def address_of(module: torch.nn.Module, scope: str, method: str) -> tuple[str, SeenState | None]:
    """Returns the scope of a module, and the look that found it, where one was needed.

    Raises:
        UnidentifiedError: something in it cannot be hashed.
    """
    if scope:
        return scope, None
    if isinstance(module, torch.jit.ScriptModule):
        return fingerprint_of_method(module, method), None
    seen = state_of(module).look(module)
    return seen.fingerprint, seen
