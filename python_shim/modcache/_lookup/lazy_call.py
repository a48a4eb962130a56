# SPDX-License-Identifier: Apache-2.0
"""A call of a lazy module, which looks stored values up without the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modcache._call import eager
from modcache._call.bypass import transform_in_force
from modcache._call.inputs import shown
from modcache._call.padding import WHOLE_ROWS, Padding
from modcache._call.rows import row_count
from modcache._identity.module_state import GradPattern
from modcache._lazy.model import Lazy
from modcache._lazy.source import LazySource
from modcache._library.tracing import is_traced

# A function of (module, scope) that returns the same as lazily_looked_up.
_Ordinary = Callable[[torch.nn.Module, str], tuple[bool, Any]]


def lazily_looked_up(
    lazy: Lazy,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    scope: str,
    method: str,
    ordinary: _Ordinary,
    padding: Padding = WHOLE_ROWS,
) -> tuple[bool, Any]:
    """Returns False and the value; or True, and a list of rows that do not fit together.

    ``ordinary`` makes the call of a module that is loaded.
    """
    source = lazy._source
    module = source.current()
    seen: Any = None
    address = ""
    if module is None and torch.ops.cache.mode() != "off":
        seen = shown(input, row_count(keys), padding.padded_to())
        if not (seen.refusal or transform_in_force(input) or is_traced()):
            address = scope or source.address(method)
    if not address:
        module = source.load(input)
    if module is not None:
        if not (scope or source.scope):
            source.note_fingerprint(method)
        return ordinary(module, scope or source.scope)
    call = _LazyCall(source, address, scope or source.scope, method)
    try:
        if isinstance(keys, str):
            return False, eager.with_key(call, seen.value, input, keys, method)
        return eager.with_rows(call, seen, input, keys, method, padding)
    except _NotHereError as error:
        return ordinary(error.module, scope or source.scope)


class _NotHereError(Exception):
    """The library itself has to run this module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module


class _LazyCall:
    """A call whose module is loaded once the library says that it has to run."""

    pattern = GradPattern(0, ())
    watch = None

    def __init__(self, source: LazySource, address: str, scope: str, method: str) -> None:
        self._source = source
        self.address = address
        self.class_name = source.name
        self._scope = scope
        self._method = method

    def load(self, input: Any) -> torch.nn.Module:
        return self._source.load(input)

    def to_run(self, input: Any, run: Any = None) -> eager.Call:
        module = self.load(input)
        if _returns_named_tuple(module, self._method):
            raise _NotHereError(module)
        call = eager.Call(module, input, self._scope, self._method)
        if call.address != self.address and not call.unidentified:
            call.unidentified = f"{self.class_name} was replaced while it was loaded"
        if run is not None:
            call.restart(run)
        return call.to_run(input)


def _returns_named_tuple(module: torch.nn.Module, method: str) -> bool:
    """Whether a scripted method's results lose the names of their classes on the way to Python.

    The library makes such a call itself, and counts its keys twice.
    """
    native: Any = getattr(module, "_c", None)
    if not isinstance(module, torch.jit.ScriptModule) or not native._has_method(method):
        return False
    returns = native._get_method(method).schema.returns
    return any("__torch__" in returned.type.annotation_str for returned in returns)
