# SPDX-License-Identifier: Apache-2.0
"""Goes on with calls of eager modules that the compiled part began (python_shim/native/begun.h).

It looked the call up in the library, and found that nothing is stored, or a value that is no lone
tensor. What the ordinary way finds out before a run is known then: the module is what its snapshot
says, nothing in the call requires grad, and its input is one tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from modcache._call import eager
from modcache._call.function import function_of
from modcache._call.grad import WITHOUT_GRAD
from modcache._call.ready_call import ReadyCall
from modcache._call.tagged import UnknownClassError, untagged
from modcache._identity.manifest import NOTHING_TO_SAY
from modcache._identity.module_state import GradPattern

_Outcome = tuple[bool, str, str]
_IN_GRAD_MODE = GradPattern(0, (False,))
_run_at: Any = torch.classes.cache.Run.at


def finished(
    begun: Any, module: torch.nn.Module, input: Any, key: Any, scope: str, method: str
) -> Any:
    """Returns the value that was found, or runs the module and has the library keep the result.

    ``key``: one text, as no other call is begun.
    """
    if not begun.has_run:
        try:
            return untagged(begun.value)
        except UnknownClassError as reason:
            why = f"it was stored, but {reason}"
            return eager.run_uncached(module, input, key, method, why)
    try:
        return _ready(begun, module, scope, method).run_observed(input, _Run(begun))
    except BaseException:
        begun.abandon()  # the exception may keep it alive while other threads wait for it
        raise


def _ready(begun: Any, module: torch.nn.Module, scope: str, method: str) -> ReadyCall:
    call = ReadyCall(
        module, module, function_of(module, method), method, is_named=bool(scope),
        address=begun.scope, pattern=_IN_GRAD_MODE if torch.is_grad_enabled() else WITHOUT_GRAD,
    )  # fmt: skip
    if not scope:
        call.note_recognized(call.state.recognize(module))
    return call


class _Run:
    """A run of the compiled part, with the methods of ``torch.classes.cache.Run``.

    A result that is one plain tensor goes the short way into the library.
    """

    def __init__(self, begun: Any) -> None:
        self._begun = begun

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

    def _whole(self) -> Any:
        return _run_at(self._begun.address())
