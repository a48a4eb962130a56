# SPDX-License-Identifier: Apache-2.0
"""Runs eager modules through the cache: identity in Python, everything else in the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from modcache._bypass import count_bypass, seen_result
from modcache._identity import (
    GradPattern,
    ModuleState,
    Sight,
    change_between,
    forget_weights_of,
    state_of,
)
from modcache._inputs import shown
from modcache._kinds import UnidentifiedError
from modcache._scripted import fingerprint_of_method
from modcache._wrappers import identified_as, runnable

# What cache::_begin says is to be done.
_RETURN, _JUST_RUN = 0, 2
_CURE = "pass scope=... to name the module yourself"


def fingerprint(module: torch.nn.Module, method: str = "forward") -> str:
    """32 hexadecimal digits. Raises TypeError when something in the module cannot be hashed."""
    _call_of(module, (), method)
    try:
        return state_of(module).look(module).fingerprint
    except UnidentifiedError as reason:
        raise TypeError(
            f"{type(module).__qualname__} has no fingerprint: {reason}; {_CURE}."
        ) from None


def refresh_fingerprint(module: torch.nn.Module) -> str:
    """The fingerprint after reading every byte of the module's tensors."""
    state_of(module).forget_weights()
    return fingerprint(module)


def lookup_or_run(
    module: torch.nn.Module, input: Any, key: str, scope: str, method: str
) -> torch.Tensor:
    """See ``modcache.lookup_or_run``; ``scope`` "" stands for the fingerprint.

    While results carry a graph the module is in training: it is run without a look at it, since
    every step would have all weights hashed for nothing.
    """
    seen, refusal = shown(input)
    if refusal:
        return run_uncached(module, input, key, method, refusal)
    call = _call_of(module, input, method)
    target = identified_as(module)
    state = state_of(target)
    is_off = torch.ops.cache.mode() == "off"
    pattern = _grad_pattern(target, None if is_off else state, input)
    is_looked_up = not is_off and pattern not in state.graph_patterns
    before, address, unidentified = None, "", ""
    if is_looked_up:
        before, address, unidentified = _identify(target, state, scope, method)
    todo, value, run = torch.ops.cache._begin(
        address, method, seen, key, pattern.module, state.watch, class_name=_name_of(target)
    )
    if todo == _RETURN:
        return value  # type: ignore[no-any-return]
    if pattern.module:
        state.forget_weights()  # a fused optimizer step leaves no trace but new bytes
    if todo == _JUST_RUN:
        return _checked(call(), target, method)
    try:
        if before is None and not unidentified:
            before = _glance(target, state)
        if before is not None:
            before.note_versions()
        output = _checked(call(), target, method)
        because = unidentified or _change(target, state, before)
    except BaseException:
        torch.ops.cache._abandon(run)
        raise
    state.note_graph(pattern, output.requires_grad)
    trainable = _count_requiring_grad(target) if output.requires_grad else 0
    torch.ops.cache._finish(run, seen_result(output), because, requiring_grad=trainable)
    return output


def run_uncached(
    module: torch.nn.Module, input: Any, key: str, method: str, why: str
) -> torch.Tensor:
    """Runs a module of any kind without the cache, and counts that."""
    call = _call_of(module, input, method)
    count_bypass(_name_of(module), method, key, why)
    if torch.is_grad_enabled():
        forget_weights_of(identified_as(module))
    return _checked(call(), module, method)


def _name_of(module: torch.nn.Module) -> str:
    """The name of its class, also where it was scripted."""
    return str(getattr(module, "original_name", type(module).__name__))


def _identify(
    module: torch.nn.Module, state: ModuleState, scope: str, method: str
) -> tuple[Sight | None, str, str]:
    """What was seen, the scope to look under ("": none), and why nothing may be stored (or "")."""
    if scope:
        return None, scope, ""
    try:
        if isinstance(module, torch.jit.ScriptModule):
            return None, fingerprint_of_method(module, method), ""
        sight = state.look(module)
    except UnidentifiedError as reason:
        return None, "", f"none that can be checked, since {reason}; {_CURE}"
    return sight, sight.fingerprint, ""


def _glance(module: torch.nn.Module, state: ModuleState) -> Sight | None:
    """For a module whose name the caller answers for: what can be compared after the run."""
    try:
        return state.look(module, with_weights=False)
    except UnidentifiedError:
        return None


def _change(module: torch.nn.Module, state: ModuleState, before: Sight | None) -> str:
    """What the run changed in the module: such a module is no function of its input."""
    if before is None:
        return ""
    try:
        after = state.look(module, with_weights=bool(before.weights))
    except UnidentifiedError as reason:
        return str(reason)
    return change_between(module, before, after)


def _call_of(module: torch.nn.Module, input: Any, method: str) -> Callable[[], Any]:
    function = runnable(module) if method == "forward" else getattr(module, method, None)
    if not callable(function):
        raise AttributeError(
            f"method={method!r}: {type(module).__qualname__} has no such method. "
            'Name one of its methods; the default is "forward".'
        )
    arguments = input if isinstance(input, tuple) else (input,)
    return lambda: function(*arguments)


def _checked(output: Any, module: torch.nn.Module, method: str) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    raise TypeError(
        f"{type(module).__qualname__}.{method} returned a {type(output).__qualname__}, but "
        "lookup_or_run caches one Tensor. Return a Tensor, or use lookup_or_run_any, which takes "
        "structured results."
    )


def _grad_pattern(module: torch.nn.Module, state: ModuleState | None, input: Any) -> GradPattern:
    if not torch.is_grad_enabled():
        return GradPattern(0, ())
    flags = tuple(tensor.requires_grad for tensor in _tensors_of(module))
    if state is not None:  # with mode off only who trains matters
        flags += tuple(tensor.requires_grad for tensor in state.tensors_in_reach(module))
    # The library only asks whether two patterns are the same, within this process.
    return GradPattern(hash(flags) & 0x7FFF_FFFF_FFFF | 1 if any(flags) else 0, _flags_of(input))


def _flags_of(value: Any) -> tuple[bool, ...]:
    """Which tensors of an input require grad, in order."""
    if isinstance(value, torch.Tensor):
        return (value.requires_grad,)
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return tuple(flag for part in value for flag in _flags_of(part))
    return ()


def _count_requiring_grad(module: torch.nn.Module) -> int:
    return sum(tensor.requires_grad for tensor in _tensors_of(module))


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers, faster than ``module.parameters()``."""
    seen = set()
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        for tensors in (part._parameters, part._buffers):
            yield from [tensor for tensor in tensors.values() if tensor is not None]
        waiting += [child for child in part._modules.values() if child is not None]
