# SPDX-License-Identifier: Apache-2.0
"""A call of an eager module between its lookup and its result: the run, and its judgement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from modcache._call.facts import (
    WITHOUT_GRAD,
    count_requiring_grad,
    has_graph,
    is_checkpointed,
    is_in_training,
    note_copy,
    was_in_training,
    with_cure,
)
from modcache._call.function import called_on
from modcache._call.padding import Padding
from modcache._call.rows import select_rows
from modcache._call.tagged import tagged
from modcache._call.trials import run_check, run_trial
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.known import Recognized
from modcache._identity.manifest import MANIFEST_S, NOTHING_TO_SAY, Scope, class_name, note_outcome
from modcache._identity.module_state import (
    NOT_REFUSED,
    GradPattern,
    ModuleState,
    SeenState,
    change_between,
    state_of,
    unchanging,
)

# The step of a run to make now; None: there is no more.
_next_step: Any = torch.classes.cache.Run.next_step
# Kinds of steps, as module::Step numbers them; the third is a trial.
_RUN, _CHECK = 0, 1


class ReadyCall:
    """A call that is ready to run.

    Args:
        module: as the caller gave it.
        target: the module that is identified.
        function: what runs.
        method: its name.
        is_named: the caller gave the scope.
        address: the scope, or the fingerprint; "" where nothing may be stored.
        pattern: which tensors require grad.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        target: torch.nn.Module,
        function: Callable[..., Any],
        method: str,
        *,
        is_named: bool,
        address: str = "",
        pattern: GradPattern = WITHOUT_GRAD,
    ) -> None:
        self._module = module
        self._target = target
        self._function = function
        self._method = method
        self._is_named = is_named
        self.address = address
        self.pattern = pattern
        self.state = state_of(target)
        self.unidentified = ""
        self.cause: BaseException | None = None  # what an object raised while it was identified
        self._seen: Recognized | None = None
        self._before: SeenState | None = None
        self._is_recognized = False  # a snapshot identified it, without a look in full

    @property
    def class_name(self) -> str:
        return class_name(self._target)

    def note_recognized(self, seen: Recognized | None) -> None:
        """Notes that a snapshot identified the module, and whether it still holds (``seen``)."""
        self._seen = seen
        self._is_recognized = True

    def run(self, input: Any) -> Any:
        return called_on(self._function, input)

    def run_rows(self, input: Any, count: int, run: Any, padding: Padding) -> tuple[Any, Any]:
        """Makes the steps of a run of ``count`` rows.

        Returns the output of the last one, and what is returned in its place, as ``run.value()``
        does; None: it is returned itself.
        """
        output = None
        while (step := _next_step(run)) is not None:
            kind, *asked = step
            if kind == _RUN:
                rows = asked[0]
                part = input if rows is None else select_rows(input, rows, count)
                output = self.run_observed(part, run, is_rows=True)
                continue
            if kind == _CHECK:
                seen = run_check(self._module, self.run, input, count, asked)
            else:
                seen = run_trial(self._module, self._method, self.run, input, count, padding, asked)
            run.finish_check(*seen)
            self._note_outcome(run, run.outcome())
        return output, run.value()

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
        except BaseException as error:
            self._note_outcome(run, run.outcome())
            if self.cause is not None:  # with strict=true
                raise error from self.cause
            raise
        self._note_outcome(run, outcome)
        return output

    def _note_outcome(self, run: Any, outcome: tuple[bool, str, str]) -> None:
        if outcome == NOTHING_TO_SAY:
            self.state.refusal = NOT_REFUSED
            return
        is_quick = self.state.look_s < MANIFEST_S
        if outcome[0] and self._before is None and not self._is_named and is_quick:
            self._look_before()  # for the manifest
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
        output = self.run(input)
        because = self.unidentified or _change(self._target, self.state, before)
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
        output = self.run(input)
        try:
            because = with_cure(around.change_in(self._target), self._target)
        except UnidentifiedError as reason:
            because = str(reason)
        return output, because, was_in_training(around.outline)

    def _recognized(self) -> Recognized | None:
        if self._seen is not None or not self._is_named:
            return self._seen if self._is_named or self._is_recognized else None
        is_scripted = isinstance(self._target, torch.jit.ScriptModule)
        return None if is_scripted else self.state.recognize(self._target, is_named=True)

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


def _change(module: torch.nn.Module, state: ModuleState, before: SeenState | None) -> str:
    """Names what the run changed in the module; then its result depends on more than its input."""
    if before is None:
        return ""
    try:
        after = state.look(module, with_weights=bool(before.weights))
    except UnidentifiedError as reason:
        return str(reason)
    return with_cure(change_between(module, before, after), module)
