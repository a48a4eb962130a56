# SPDX-License-Identifier: Apache-2.0
"""Runs eager modules through the cache. They are identified here; the library does the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modcache._call.bypass import count_bypass, count_refused_rows
from modcache._call.evaluation import begin_evaluation, record_function
from modcache._call.facts import grad_pattern
from modcache._call.function import CURE, address_of, called_on, function_of, unidentified
from modcache._call.holder import Holder
from modcache._call.inputs import Shown, shown
from modcache._call.keys import Keys, checked_keys
from modcache._call.padding import WHOLE_ROWS, Padding
from modcache._call.ready_call import ReadyCall
from modcache._call.rows import check_rows, row_count, texts_and_ids
from modcache._call.tagged import UnknownClassError, untagged
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.manifest import class_name
from modcache._identity.module_state import forget_weights_of
from modcache._identity.scripted import native
from modcache._identity.wrappers import identified_as

# Marks a reason for which a module cannot be identified (csrc/module/call/rules.cpp).
UNIDENTIFIED = "unidentified: "
# Methods without an object. Looking one up costs as much as the call, so it is done once.
_begin: Any = torch.classes.cache.Run.begin
_begin_rows: Any = torch.classes.cache.Run.begin_rows
# Answers of begin, as module::Next numbers them.
_RETURN, _JUST_RUN = 0, 2


def lookup_or_run(
    module: torch.nn.Module,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    scope: str,
    method: str,
    padding: Padding = WHOLE_ROWS,
) -> tuple[bool, Any]:
    """See ``modcache.lookup_or_run``; ``scope`` "" stands for the fingerprint.

    Returns False and the value; or True, and a list of rows that do not fit together.
    """
    seen = shown(input, row_count(keys), padding.padded_to())
    if seen.refusal:
        why = f"its input holds {seen.refusal}"
        return False, run_uncached(module, input, keys, method, why)
    return looked_up(Call(module, input, scope, method), seen, input, keys, method, padding)


def looked_up(
    call: Any,
    seen: Shown,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    method: str,
    padding: Padding,
) -> tuple[bool, Any]:
    """Looks up one key, or one per row, or runs.

    ``call``: a Call, or one of a lazy module, which has the same ``address``, ``pattern``,
    ``watch``, ``class_name``, ``load`` and ``to_run``. ``seen``: the input as the library takes it.
    """
    if isinstance(keys, str):
        todo, found, run = _begin(
            call.address, method, seen.value, keys, call.pattern.module, call.watch,
            call.class_name,
        )  # fmt: skip
    else:
        todo, found, run = _begin_rows(
            call.address, method, seen.value, *texts_and_ids(keys), call.pattern.module,
            call.watch, call.class_name, *padding, seen.runs_whole, seen.has_unseen_rows,
        )  # fmt: skip
    if todo == _JUST_RUN:
        return False, call.to_run(input).run(input)
    if todo != _RETURN:
        try:
            ready = call.to_run(input, run)
            if isinstance(keys, str):
                return False, ready.run_observed(input, run)
            output, found = ready.run_rows(input, len(keys), run, padding)
        except BaseException:
            run.abandon()  # the exception may keep it alive while other threads wait for it
            raise
        if found is None:
            return False, output
    is_apart, value = (False, found) if isinstance(keys, str) else found
    return given_back(call.load, is_apart, value, input, keys, method)


def given_back(
    load: Callable[[Any], torch.nn.Module],
    is_apart: bool,
    value: Any,
    input: Any,
    keys: Keys,
    method: str,
) -> tuple[bool, Any]:
    """Rebuilds what was found; runs the module uncached where that is impossible.

    ``load``: loads the module for an input, which may bring the classes of values along.
    """
    for _ in range(2):
        try:
            return is_apart, [untagged(row) for row in value] if is_apart else untagged(value)
        except UnknownClassError as reason:
            why = f"it was stored, but {reason}"
            module = load(input)
    return False, run_uncached(module, input, checked_keys(keys), method, why)


def run_uncached(
    module: torch.nn.Module, input: Any, key: str | list[str] | torch.Tensor, method: str, why: str
) -> Any:
    """Runs a module of any kind without the cache, and counts that; with many keys, each row.

    Raises ValueError for a mistake in the keys; nothing has run then.
    """
    function = function_of(module, method)
    if not isinstance(key, str):
        check_rows(input, key)
    count_bypass(class_name(module), method, key, why)
    if torch.is_grad_enabled():
        forget_weights_of(identified_as(module))
    return called_on(function, input)


def run_whole(
    module: torch.nn.Module, input: Any, keys: str | list[str] | torch.Tensor, method: str, why: str
) -> Any:
    """Runs a batch that cannot be cached by row, and counts its rows."""
    count_refused_rows(class_name(module), method, len(keys), why)
    return called_on(function_of(module, method), input)


def run_plain(module: torch.nn.Module, input: Any, method: str) -> Any:
    """Runs a module without the cache, as a part of another cached call, and counts nothing."""
    return called_on(function_of(module, method), input)


class Call(ReadyCall):
    """One call of a module that is there: it looks at the module before the library is asked.

    While results carry a graph, the module is in training. It then runs without being identified,
    since every step would hash all weights for nothing.
    """

    def __init__(self, module: torch.nn.Module, input: Any, scope: str, method: str) -> None:
        target = identified_as(module)
        function = function_of(module, method)
        super().__init__(module, target, function, method, is_named=bool(scope))
        is_off = torch.ops.cache.mode() == "off"
        infers = not is_off and begin_evaluation(target, method)
        # With a scope and without a graph, no answer depends on the module.
        is_looked_at = not is_off and (not scope or torch.is_grad_enabled())
        if not isinstance(target, torch.jit.ScriptModule):
            record_function(self.state, target, method)
            if is_looked_at:
                self._seen = self.state.recognize(target, is_named=bool(scope))
        state = None if is_off else self.state
        if not infers:
            self.pattern = grad_pattern(target, state, input, self._seen, is_named=bool(scope))
        if not is_off and self.pattern not in self.state.graph_patterns:
            self._identify(scope, method)

    def _identify(self, scope: str, method: str) -> None:
        """Finds the scope ("": none), or the reason why nothing may be stored."""
        target = self._target
        try:
            if self._seen is not None and not scope:
                self.address = self.state.fingerprint_of(self._seen)
                self.note_recognized(self._seen)
            else:
                self.address, self._before = address_of(target, scope, method)
        except UnidentifiedError as reason:
            if isinstance(target, Holder) and reason.__cause__ is None:
                raise unidentified(target, reason) from None
            self.unidentified = f"{UNIDENTIFIED}{reason}; {CURE}"
            self.cause = reason.__cause__

    @property
    def watch(self) -> Any:
        return None if self._is_named else self.state.watch

    def restart(self, run: Any) -> None:
        """Begins a run whose module was loaded during the call."""
        if isinstance(self._target, torch.jit.ScriptModule) and not self._is_named:
            run.restart(None, native(self._target))
        else:
            run.restart(self.watch, None)

    def load(self, input: Any) -> torch.nn.Module:
        return self._module

    def to_run(self, input: Any, run: Any = None) -> Call:
        if self.pattern.module:
            self.state.forget_weights()  # a fused optimizer step leaves no trace but new bytes
        return self
