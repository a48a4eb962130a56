# SPDX-License-Identifier: Apache-2.0
"""Runs eager modules through the cache. They are identified here; the library does the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from modcache._call.address import CURE, address_of, unidentified
from modcache._call.bypass import count_bypass
from modcache._call.causes import (
    is_checkpointed,
    is_in_training,
    note_copy,
    was_in_training,
    with_cure,
)
from modcache._call.evaluation import begin_evaluation
from modcache._call.function import called_on, function_of
from modcache._call.grad import WITHOUT_GRAD, count_requiring_grad, grad_pattern, has_graph
from modcache._call.graph_rows import RowsOfGraphs, RunOfGraphs, rows_of_graphs
from modcache._call.holder import Holder
from modcache._call.input_classes import code_of_input
from modcache._call.inputs import Shown, shown
from modcache._call.padding import WHOLE_ROWS, Padding
from modcache._call.padding_trial import run_trials
from modcache._call.rows import check_rows, row_count, select_rows, texts_and_ids
from modcache._call.tagged import UnknownClassError, tagged, untagged
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.manifest import NOTHING_TO_SAY, Scope, class_name, note_outcome
from modcache._identity.module_state import (
    NOT_REFUSED,
    GradPattern,
    ModuleState,
    Recognized,
    SeenState,
    change_between,
    forget_weights_of,
    state_of,
)
from modcache._identity.observed import called, unfollowed
from modcache._identity.scripted import native
from modcache._identity.unchanging import unchanging
from modcache._identity.wrappers import identified_as

# Methods without an object. Looking one up costs as much as the call, so it is done once.
_begin: Any = torch.classes.cache.Run.begin
_begin_rows: Any = torch.classes.cache.RowsRun.begin
# Answers of begin, as module::Next numbers them.
_RETURN, _JUST_RUN = 0, 2


def lookup_or_run(module: torch.nn.Module, input: Any, key: str, scope: str, method: str) -> Any:
    """See ``modcache.lookup_or_run``; ``scope`` "" stands for the fingerprint."""
    seen = shown(input)
    if seen.refusal:
        return run_uncached(module, input, key, method, f"its input holds {seen.refusal}")
    return with_key(Call(module, input, scope, method), seen.value, input, key, method)


def with_key(call: BegunCall, seen: Any, input: Any, key: str, method: str) -> Any:
    """Looks up one key, or runs. ``seen``: the input as the library takes it."""
    todo, value, run = _begin(
        call.address, method, seen, key, call.pattern.module, call.watch, call.class_name
    )
    if todo == _RETURN:
        return given_back(call, False, value, input, key, method)[1]
    if todo == _JUST_RUN:
        return call.to_run(input).run(input)
    with _abandoned_on_error(run):
        return call.to_run(input, run).run_observed(input, run)


def lookup_or_run_rows(
    module: torch.nn.Module,
    input: Any,
    keys: list[str] | torch.Tensor,
    scope: str,
    method: str,
    padding: Padding = WHOLE_ROWS,
) -> tuple[bool, Any]:
    """Looks up one key per row, or runs: the batch; or True, and rows that do not fit together."""
    seen = shown(input, row_count(keys), padding.padded_to())
    if seen.refusal:
        why = f"its input holds {seen.refusal}"
        return False, run_uncached(module, input, keys, method, why)
    return with_rows(Call(module, input, scope, method), seen, input, keys, method, padding)


def with_rows(
    call: BegunCall,
    seen: Shown,
    input: Any,
    keys: list[str] | torch.Tensor,
    method: str,
    padding: Padding = WHOLE_ROWS,
) -> tuple[bool, Any]:
    """Looks up one key per row, or runs. ``seen``: the input as the library takes it."""
    graphs = rows_of_graphs(input, len(keys), seen.value, call.address, method)
    if graphs is not None and graphs.learned.refusal:
        count_bypass(call.class_name, method, keys, graphs.learned.refusal)
        return False, call.to_run(input).run(input)
    todo, found, run = _begin_rows(
        call.address, method, seen.value, *texts_and_ids(keys), call.pattern.module, call.watch,
        call.class_name, *padding, seen.runs_whole,
    )  # fmt: skip
    if todo == _JUST_RUN:
        return False, call.to_run(input).run(input)
    if todo != _RETURN:
        with _abandoned_on_error(run):
            ready = call.to_run(input, run)
            if graphs is not None:
                run = RunOfGraphs(run, graphs, ready.run, found)
            output, found = ready.run_rows(input, len(keys), run, found, padding)
            if found is None:
                return False, output
    is_apart, value = found
    return given_back(call, is_apart, value, input, keys, method, graphs)


def given_back(
    call: BegunCall,
    is_apart: bool,
    value: Any,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    method: str,
    graphs: RowsOfGraphs | None = None,
) -> tuple[bool, Any]:
    """Rebuilds what was found. Loading a lazy module may bring the classes of values along."""
    for _ in range(2):
        try:
            if graphs is not None:
                return False, untagged(graphs.joined(is_apart, value))
            return is_apart, [untagged(row) for row in value] if is_apart else untagged(value)
        except UnknownClassError as reason:
            why = f"it was stored, but {reason}"
            module = call.load(input)
    return False, run_uncached(module, input, keys, method, why)


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


def run_plain(module: torch.nn.Module, input: Any, method: str) -> Any:
    """Runs a module without the cache, as a part of another cached call, and counts nothing."""
    return called_on(function_of(module, method), input)


class BegunCall(Protocol):
    """A call as look-ups use it. Its module may not be loaded yet."""

    address: str
    pattern: GradPattern
    class_name: str

    @property
    def watch(self) -> Any:
        """The watch over the tensors in the address; None: the caller named the scope."""

    def load(self, input: Any) -> torch.nn.Module:
        """Returns the module, and loads it if it is not loaded yet."""

    def to_run(self, input: Any, run: Any = None) -> Call:
        """Returns the call, ready to run. Restarts ``run`` if it had to load the module."""


class Call:
    """One call of a module that is there.

    While results carry a graph, the module is in training. It then runs without being identified,
    since every step would hash all weights for nothing.
    """

    def __init__(self, module: torch.nn.Module, input: Any, scope: str, method: str) -> None:
        self._function = function_of(module, method)
        self._module = module
        self._target = identified_as(module)
        self._method = method
        self._is_named = bool(scope)
        self.class_name = class_name(self._target)
        self.state = state_of(self._target)
        self.state.class_name = self.class_name
        is_off = torch.ops.cache.mode() == "off"
        infers = not is_off and begin_evaluation(self._target, method)
        # With a scope and without a graph, no answer depends on the module.
        is_looked_at = not is_off and (not scope or torch.is_grad_enabled())
        self._seen: Recognized | None = None
        if is_looked_at and not isinstance(self._target, torch.jit.ScriptModule):
            self._seen = self.state.recognize(self._target)
        state = None if is_off else self.state
        self.pattern = (
            WITHOUT_GRAD if infers else grad_pattern(self._target, state, input, self._seen)
        )
        self._before: SeenState | None = None
        self.unidentified = ""
        self._is_recognized = False  # a snapshot identified it, without a look in full
        self.address = ""
        if not is_off and self.pattern not in self.state.graph_patterns:
            self._identify(scope, method)

    def _identify(self, scope: str, method: str) -> None:
        """Finds the scope ("": none), or the reason why nothing may be stored."""
        target = self._target
        try:
            if self._seen is not None and not scope:
                self.address = self.state.fingerprint_of(self._seen)
                self._is_recognized = True
            else:
                self.address, self._before = address_of(target, scope, method)
        except UnidentifiedError as reason:
            if isinstance(target, Holder):
                raise unidentified(target, reason) from None
            self.unidentified = f"none that can be checked, since {reason}; {CURE}"

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

    def run(self, input: Any) -> Any:
        return called_on(self._function, input)

    def run_rows(
        self, input: Any, count: int, run: Any, rows: Any, padding: Padding
    ) -> tuple[Any, Any]:
        """Runs ``rows`` of the input, and those that the library adds meanwhile.

        Returns the output of all rows, and None; or the last one, and what ``run.rows()`` returns.
        """
        while rows:
            is_whole = len(rows) == count
            part = input if is_whole else select_rows(input, rows, count)
            output = self.run_observed(part, run, is_rows=True)
            if run_trials(run, self._module, self._method, self.run, input, count, padding):
                self._note_outcome(run, run.outcome())
            rows = run.next_rows()
            if is_whole and not rows and (padding is WHOLE_ROWS or run.gives_own_result()):
                return output, None
        return output, run.rows()

    def run_observed(self, input: Any, run: Any, *, is_rows: bool = False) -> Any:
        """Runs the module, and gives the library the result."""
        target = self._target
        output, because, is_training = self._run_recognized(input) or self._run_looked_at(input)
        is_graph = has_graph(output)
        self.state.note_graph(self.pattern, is_graph)
        trainable = count_requiring_grad(target) if is_graph else 0
        output_seen = tagged(output, is_rows=is_rows)
        try:
            outcome = run.finish(
                output_seen, because, trainable, is_training, is_graph and is_checkpointed(target)
            )
        except BaseException:
            self._note_outcome(run, run.outcome())
            raise
        self._note_outcome(run, outcome)
        return output

    def _note_outcome(self, run: Any, outcome: tuple[bool, str, str]) -> None:
        if outcome == NOTHING_TO_SAY:
            self.state.refusal = NOT_REFUSED
            return
        if outcome[0] and self._before is None and not self._is_named:  # for the manifest
            self._look_before()
        seen = self._before if self._before is not None and self._before.weights else None
        scope = Scope(self.address, self._is_named)
        note_outcome(run, outcome, self._target, self._method, scope, seen)
        if outcome[0] and not self._is_named:
            note_copy(self._target, self.state, f"{self.class_name}.{self._method}")

    def _run_looked_at(self, input: Any) -> tuple[Any, str, bool]:
        """Returns the output, why it may not be kept, and whether the module is in training."""
        before = self._before_run()
        if before is not None:
            before.note_versions()
        is_training = is_in_training(self._target, before)
        output, unfollowed = self._run_watched(input, before)
        because = self.unidentified or _change(self._target, self.state, before) or unfollowed
        return output, because, is_training

    def _run_recognized(self, input: Any) -> tuple[Any, str, bool] | None:
        """Does the same for a module that a snapshot recognizes before and after the run.

        None: it has to be looked at in full. Nothing has run then.
        """
        seen = None if self._before is not None or self.unidentified else self._recognized()
        address = "" if self._is_named else self.address
        around = None if seen is None else unchanging(self.state, seen, address)
        if around is None:
            return None
        code: Any = []
        if self._is_named:
            output = self.run(input)
        else:
            output, code = called(lambda: self.run(input))
        try:
            because = with_cure(around.change_in(self._target), self._target)
            because = because or self._unfollowed(
                code, input, lambda: self.state.look(self._target)
            )
        except UnidentifiedError as reason:
            because = str(reason)
        return output, because, was_in_training(around.outline)

    def _recognized(self) -> Recognized | None:
        if self._seen is not None or not self._is_named:
            return self._seen if self._is_named or self._is_recognized else None
        is_scripted = isinstance(self._target, torch.jit.ScriptModule)
        return None if is_scripted else self.state.recognize(self._target)

    def _run_watched(self, input: Any, before: SeenState | None) -> tuple[Any, str]:
        """Returns the output, and which code ran that the look ``before`` did not find."""
        if before is None or not before.weights:
            return self.run(input), ""
        output, code = called(lambda: self.run(input))
        return output, self._unfollowed(code, input, lambda: before)

    def _unfollowed(self, code: Any, input: Any, look: Callable[[], SeenState]) -> str:
        """Names code of a run that looks at the module do not follow; "": there is none."""

        def followed() -> Any:
            return self.state.followed(self.address, look) | code_of_input(input)

        reason = unfollowed(code, followed)
        return f"{reason}; {CURE}" if reason else ""

    def _before_run(self) -> SeenState | None:
        """Looks at the module before the run, in full or as far as it can be seen."""
        if self._before is not None or self.unidentified:
            return self._before
        if not self._is_recognized:  # the caller named the scope
            with contextlib.suppress(UnidentifiedError):
                return self.state.look(self._target, with_weights=False)
            return None
        return self._look_before()

    def _look_before(self) -> SeenState | None:
        try:
            self._before = self.state.look(self._target)
        except UnidentifiedError as reason:
            self.unidentified = str(reason)
            return None
        if self._before.fingerprint != self.address:
            name = type(self._target).__qualname__
            self.unidentified = f"{name} changed while the call waited"
        return self._before


@contextlib.contextmanager
def _abandoned_on_error(run: Any) -> Iterator[None]:
    """Abandons ``run`` on an exception, which may keep it alive while other threads wait for it."""
    try:
        yield
    except BaseException:
        run.abandon()
        raise


def _change(module: torch.nn.Module, state: ModuleState, before: SeenState | None) -> str:
    """Names what the run changed in the module; then its result depends on more than its input."""
    if before is None:
        return ""
    try:
        after = state.look(module, with_weights=bool(before.weights))
    except UnidentifiedError as reason:
        return str(reason)
    return with_cure(change_between(module, before, after), module)
