# SPDX-License-Identifier: Apache-2.0
"""Runs eager modules through the cache: identity in Python, everything else in the library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from modcache._arguments import Arguments
from modcache._bypass import count_bypass
from modcache._grad import count_requiring_grad, grad_pattern, has_graph
from modcache._holder import Holder
from modcache._identity import (
    ModuleState,
    Recognized,
    Sight,
    change_between,
    forget_weights_of,
    state_of,
)
from modcache._input_classes import code_of_input
from modcache._inputs import shown
from modcache._kinds import UnidentifiedError
from modcache._manifest import Scope, note_outcome
from modcache._observed import called, unfollowed
from modcache._plain import plain_method
from modcache._rows import check_rows, select_rows
from modcache._scripted import fingerprint_of_method, native
from modcache._tagged import UnknownClassError, tagged, untagged
from modcache._wrappers import identified_as, runnable

# What cache::_begin says is to be done.
_RETURN, _JUST_RUN = 0, 2
_CURE = "pass scope=... to name the module yourself"


def fingerprint(module: torch.nn.Module, method: str = "forward") -> str:
    """32 hexadecimal digits. Raises TypeError when something in the module cannot be hashed."""
    _function_of(module, method)
    try:
        state = state_of(module)
        seen = state.recognize(module)
        return state.look(module).fingerprint if seen is None else state.fingerprint_of(seen)
    except UnidentifiedError as reason:
        raise _unidentified(module, reason) from None


def _unidentified(module: torch.nn.Module, reason: UnidentifiedError) -> TypeError:
    name = getattr(module, "original_name", type(module).__qualname__)
    return TypeError(f"{name} has no fingerprint: {reason}; {_CURE}.")


def refresh_fingerprint(module: torch.nn.Module) -> str:
    """The fingerprint after reading every byte of the module's tensors."""
    state_of(module).forget_weights()
    return fingerprint(module)


def lookup_or_run(module: torch.nn.Module, input: Any, key: str, scope: str, method: str) -> Any:
    """See ``modcache.lookup_or_run``; ``scope`` "" stands for the fingerprint."""
    seen, refusal = shown(input)
    if refusal:
        return run_uncached(module, input, key, method, refusal)
    call = _Call(module, input, scope, method)
    todo, value, run = torch.ops.cache._begin(
        call.address, method, seen, key, call.pattern.module, call.watch,
        class_name=call.class_name,
    )  # fmt: skip
    if todo == _RETURN:
        try:
            return untagged(value)
        except UnknownClassError as reason:
            return run_uncached(module, input, key, method, f"it was stored, but {reason}")
    if todo == _JUST_RUN:
        call.note_run()
        return call.run(input)
    with _abandoned_on_error(run, torch.ops.cache._abandon):
        call.note_run()
        return call.run_observed(input, run, torch.ops.cache._finish)


def lookup_or_run_rows(
    module: torch.nn.Module, input: Any, keys: list[str] | torch.Tensor, scope: str, method: str
) -> tuple[bool, Any]:
    """One key per row: the batch; or True, and a list of rows that do not fit together."""
    seen, refusal = shown(input)
    if refusal:
        return False, run_uncached(module, input, keys, method, refusal)
    call = _Call(module, input, scope, method)
    todo, rows, run = torch.ops.cache._begin_rows(
        call.address, method, seen, keys, call.pattern.module, call.watch,
        class_name=call.class_name,
    )  # fmt: skip
    if todo == _JUST_RUN:
        call.note_run()
        return False, call.run(input)
    with _abandoned_on_error(run, torch.ops.cache._abandon_rows):
        if todo != _RETURN:
            call.note_run()
        while rows:
            is_whole = len(rows) == len(keys)
            part = input if is_whole else select_rows(input, rows)
            output = call.run_observed(part, run, torch.ops.cache._finish_rows)
            rows = torch.ops.cache._next_rows(run)
            if is_whole and not rows:
                return False, output
        is_apart, value = torch.ops.cache._rows(run)
    try:
        return is_apart, [untagged(row) for row in value] if is_apart else untagged(value)
    except UnknownClassError as reason:
        return False, run_uncached(module, input, keys, method, f"it was stored, but {reason}")


def run_uncached(
    module: torch.nn.Module, input: Any, key: str | list[str] | torch.Tensor, method: str, why: str
) -> Any:
    """Runs a module of any kind without the cache, and counts that: each row, if keys are many.

    Raises: ValueError for the caller's mistakes in the keys, before anything runs.
    """
    function = _function_of(module, method)
    if not isinstance(key, str):
        check_rows(input, key)
    count_bypass(class_name_of(module), method, key, why)
    if torch.is_grad_enabled():
        forget_weights_of(identified_as(module))
    return _called(function, input)


class _Call:
    """A module on its way through one call.

    While results carry a graph the module is in training: it is run without a look at it, since
    every step would have all weights hashed for nothing.
    """

    def __init__(self, module: torch.nn.Module, input: Any, scope: str, method: str) -> None:
        self._function = _function_of(module, method)
        self._target = identified_as(module)
        self._method = method
        self._is_named = bool(scope)
        self.class_name = class_name_of(self._target)
        self.state = state_of(self._target)
        is_off = torch.ops.cache.mode() == "off"
        # With a scope and without a graph nothing of the module is asked.
        is_looked_at = not is_off and (not scope or torch.is_grad_enabled())
        self._seen: Recognized | None = None
        if is_looked_at and not isinstance(self._target, torch.jit.ScriptModule):
            self._seen = self.state.recognize(self._target)
        state = None if is_off else self.state
        self.pattern = grad_pattern(self._target, state, input, self._seen)
        self._before: Sight | None = None
        self._unidentified = ""
        self._is_recognized = False  # by a snapshot: who it is was not looked at in full
        self.address = ""
        if not is_off and self.pattern not in self.state.graph_patterns:
            self._identify(scope, method)

    def _identify(self, scope: str, method: str) -> None:
        """Finds the scope to look under ("": none), or why nothing may be stored."""
        target = self._target
        try:
            if scope:
                self.address = scope
            elif isinstance(target, torch.jit.ScriptModule):
                self.address = fingerprint_of_method(target, method)
            elif self._seen is not None:
                self.address = self.state.fingerprint_of(self._seen)
                self._is_recognized = True
            else:
                self._before = self.state.look(target)
                self.address = self._before.fingerprint
        except UnidentifiedError as reason:
            if isinstance(target, Holder):
                raise _unidentified(target, reason) from None
            self._unidentified = f"none that can be checked, since {reason}; {_CURE}"

    @property
    def watch(self) -> int:
        """Of the tensors whose digest the address holds; 0: the caller answers for the name."""
        return 0 if self._is_named else self.state.watch

    @property
    def who(self) -> Any:
        """The same for a module that was loaded during the call."""
        if self._is_named:
            return None
        target = self._target
        return native(target) if isinstance(target, torch.jit.ScriptModule) else self.state.watch

    def note_run(self) -> None:
        if self.pattern.module:
            self.state.forget_weights()  # a fused optimizer step leaves no trace but new bytes

    def run(self, input: Any) -> Any:
        return _called(self._function, input)

    def run_observed(self, input: Any, run: Any, finish: Callable[..., Any]) -> Any:
        """Runs the module, and tells the library what came of it."""
        before = self._before_run()
        if before is not None:
            before.note_versions()
        output, unfollowed = self._run_watched(input, before)
        because = self._unidentified or _change(self._target, self.state, before) or unfollowed
        is_graph = has_graph(output)
        self.state.note_graph(self.pattern, is_graph)
        trainable = count_requiring_grad(self._target) if is_graph else 0
        try:
            finish(run, tagged(output), because, requiring_grad=trainable)
        finally:
            sight = self._before if self._before is not None and self._before.weights else None
            scope = Scope(self.address, self._is_named)
            note_outcome(run, self._target, self._method, scope, sight)
        return output

    def _run_watched(self, input: Any, before: Sight | None) -> tuple[Any, str]:
        """The output; and what was run that ``before`` did not find, where that identifies it."""
        if before is None or not before.weights:
            return self.run(input), ""
        output, seen = called(lambda: self.run(input))
        reason = unfollowed(seen, lambda: self.state.followed(before) | code_of_input(input))
        return output, f"{reason}; {_CURE}" if reason else ""

    def _before_run(self) -> Sight | None:
        """What the run is compared with: all of the module, or what can be seen of it."""
        if self._before is not None or self._unidentified:
            return self._before
        if not self._is_recognized:
            return _glance(self._target, self.state)
        try:
            self._before = self.state.look(self._target)
        except UnidentifiedError as reason:
            self._unidentified = str(reason)
            return None
        if self._before.fingerprint != self.address:
            name = type(self._target).__qualname__
            self._unidentified = f"{name} changed while the call waited"
        return self._before


@contextlib.contextmanager
def _abandoned_on_error(run: Any, abandon: Callable[..., Any]) -> Iterator[None]:
    """Whoever keeps an exception keeps its frames, and with them `run`: nobody waits for that."""
    try:
        yield
    except BaseException:
        abandon(run)
        raise


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


def class_name_of(module: torch.nn.Module) -> str:
    """The name of its class, also where it was scripted."""
    return str(getattr(module, "original_name", type(module).__name__))


def call_name_of(module: torch.nn.Module, method: str) -> str:
    """Of what a call runs, for messages: a cached function is not told as the module it is in."""
    target = identified_as(module)
    name = class_name_of(target)
    return name if isinstance(target, Holder) else f"{name}.{method}"


def _function_of(module: torch.nn.Module, method: str) -> Callable[..., Any]:
    function: Any = runnable(module) if method == "forward" else getattr(module, method, None)
    if plain := plain_method(identified_as(module), method):
        function = plain
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise AttributeError(
        f"method={method!r}: {type(module).__qualname__} has no such method. "
        'Name one of its methods; the default is "forward".'
    )


def _called(function: Callable[..., Any], input: Any) -> Any:
    if type(input) is Arguments:
        return input.passed_to(function)
    return function(*input) if isinstance(input, tuple) else function(input)
