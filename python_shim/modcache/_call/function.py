# SPDX-License-Identifier: Apache-2.0
"""The function that a call runs, and running it on an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from modcache._call import key_block
from modcache._call.arguments import Arguments
from modcache._call.holder import Holder
from modcache._code.wrapped import is_proxy_class, unwrapped_method
from modcache._identity.manifest import class_name
from modcache._identity.wrappers import identified_as, runnable


def call_name_of(module: torch.nn.Module, method: str) -> str:
    """Names what a call runs, for messages: a cached function by itself, without its holder."""
    target = identified_as(module)
    name = class_name(target)
    return name if isinstance(target, Holder) else f"{name}.{method}"


def function_of(module: torch.nn.Module, method: str) -> Callable[..., Any]:
    function: Any = runnable(module) if method == "forward" else getattr(module, method, None)
    target = identified_as(module)
    if plain := unwrapped_method(target, method):
        function = (method == "forward" and _compiled_in_place(target)) or plain
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
