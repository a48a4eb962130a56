# SPDX-License-Identifier: Apache-2.0
"""Goes on with calls of eager modules that the compiled part began (python_shim/native/begun.h).

It looked the call up in the library, and found that nothing is stored, or a value that is no lone
tensor. What the ordinary way looks up before a run is known then: the module is what its snapshot
says, nothing in the call requires grad, and its input is one tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from modcache._call import eager
from modcache._call.evaluation import may_evaluate_first
from modcache._call.function import function_of
from modcache._call.grad import WITHOUT_GRAD
from modcache._identity.manifest import NOTHING_TO_SAY
from modcache._identity.module_state import GradPattern, state_of

_Outcome = tuple[bool, str, str]
_WITH_GRAD_MODE = GradPattern(0, (False,))
_adopt: Any = torch.classes.cache.Run.adopt


def goes_on(begun: Any, module: torch.nn.Module, method: str) -> bool:
    """Whether the call is to go on. Otherwise it goes the ordinary way, as if it had not begun.

    A call that begins with putting modules into evaluation mode is looked up after that.
    """
    if may_evaluate_first(module, method):
        begun.abandon()
        return False
    return True


def finished(
    begun: Any, module: torch.nn.Module, input: Any, key: str, scope: str, method: str
) -> Any:
    """Returns the value that was found, or runs the module and has the library keep the result."""
    run = _Run(begun)
    try:
        call = _BegunCall(begun, module, scope, method)
        if begun.has_run:
            return call.run_observed(input, run)
    except BaseException:
        run.abandon()  # the exception may keep it alive while other threads wait for it
        raise
    return eager.given_back(call, False, begun.value, input, key, method)[1]


class _BegunCall(eager.Call):
    """A call that does not look for what the compiled part has found."""

    def __init__(self, begun: Any, module: torch.nn.Module, scope: str, method: str) -> None:
        self._function = function_of(module, method)
        self._module = self._target = module
        self._method = method
        self._is_named = bool(scope)
        self.state = state_of(module)
        self.class_name = self.state.class_name
        self.pattern = _WITH_GRAD_MODE if torch.is_grad_enabled() else WITHOUT_GRAD
        self.address = begun.scope
        self.unidentified = ""
        self._before = None
        self._is_recognized = not self._is_named
        self._seen = None if self._is_named else self.state.recognize(module)


class _Run:
    """A run of the compiled part, with the methods of ``torch.classes.cache.Run``.

    A result that is one plain tensor goes the short way into the library.
    """

    def __init__(self, begun: Any) -> None:
        self._begun = begun
        self._adopted: Any = None

    def finish(
        self,
        output: Any,
        because: str,
        requiring_grad: int,
        is_training: bool,
        is_checkpointed: bool,
    ) -> _Outcome:
        facts = (because, requiring_grad, is_training, is_checkpointed)
        is_quiet = self._begun.finish(output, *facts)
        if is_quiet is None:
            return self._whole().finish(output, *facts)  # type: ignore[no-any-return]
        return NOTHING_TO_SAY if is_quiet else self.outcome()

    def outcome(self) -> _Outcome:
        return self._whole().outcome()  # type: ignore[no-any-return]

    def put_manifest(self, class_name: str, text: str) -> None:
        self._whole().put_manifest(class_name, text)

    def abandon(self) -> None:
        if self._adopted is None:
            self._begun.abandon()
        else:
            self._adopted.abandon()

    def _whole(self) -> Any:
        if self._adopted is None:
            self._adopted = _adopt(self._begun.release())
        return self._adopted
