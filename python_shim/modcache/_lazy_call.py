# SPDX-License-Identifier: Apache-2.0
"""A call of a lazy module: what is stored is looked up without the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modcache import _eager
from modcache._bypass import is_traced, transform_in_force
from modcache._inputs import shown
from modcache._lazy import Lazy
from modcache._rows import select_rows
from modcache._tagged import UnknownClassError, untagged

# What cache::_begin says is to be done.
_RETURN, _JUST_RUN = 0, 2
# (module, scope) -> as lazily_looked_up returns it.
_Ordinary = Callable[[torch.nn.Module, str], tuple[bool, Any]]


def lazily_looked_up(
    lazy: Lazy,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    scope: str,
    method: str,
    ordinary: _Ordinary,
) -> tuple[bool, Any]:
    """The value; or True, and a list of rows that do not fit together.

    ``ordinary`` is the call of a module that is there.
    """
    source = lazy._source
    module = source.current()
    seen: Any = None
    address = ""
    if module is None and torch.ops.cache.mode() != "off":
        seen, refusal = shown(input)
        if not (refusal or transform_in_force(input) or is_traced()):
            address = scope or source.address(method)
    if not address:
        module = source.load(input)
    if module is not None:
        if not (scope or source.scope):
            source.note_fingerprint(method)
        return ordinary(module, scope or source.scope)
    call = _LazyCall(lazy, input, address, scope, method)
    try:
        return call.with_key(seen, keys) if isinstance(keys, str) else call.with_rows(seen, keys)
    except _NotHereError as error:
        return ordinary(error.module, scope or source.scope)


class _NotHereError(Exception):
    """The library has to run this module itself."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module


class _LazyCall:
    """A call whose module is loaded once the library says that it has to run."""

    def __init__(self, lazy: Lazy, input: Any, address: str, scope: str, method: str) -> None:
        self._source = lazy._source
        self._input = input
        self._address = address
        self._scope = scope or self._source.scope
        self._method = method

    def with_key(self, seen: Any, key: str) -> tuple[bool, Any]:
        todo, value, run = torch.ops.cache._begin(
            self._address, self._method, seen, key, 0, 0, class_name=self._source.name
        )
        if todo == _RETURN:
            return False, self._untagged(value)
        if todo == _JUST_RUN:
            return False, self._loaded().run(self._input)
        with _eager._abandoned_on_error(run, torch.ops.cache._abandon):
            call = self._loaded()
            torch.ops.cache._restart(run, call.who)
            return False, call.run_observed(self._input, run, torch.ops.cache._finish)

    def with_rows(self, seen: Any, keys: list[str] | torch.Tensor) -> tuple[bool, Any]:
        todo, rows, run = torch.ops.cache._begin_rows(
            self._address, self._method, seen, keys, 0, 0, class_name=self._source.name
        )
        if todo == _JUST_RUN:
            return False, self._loaded().run(self._input)
        with _eager._abandoned_on_error(run, torch.ops.cache._abandon_rows):
            if rows:
                call = self._loaded()
                torch.ops.cache._restart_rows(run, call.who)
            while rows:
                is_whole = len(rows) == len(keys)
                part = self._input if is_whole else select_rows(self._input, rows)
                output = call.run_observed(part, run, torch.ops.cache._finish_rows)
                rows = torch.ops.cache._next_rows(run)
                if is_whole and not rows:
                    return False, output
            is_apart, value = torch.ops.cache._rows(run)
        if is_apart:
            return True, [self._untagged(row) for row in value]
        return False, self._untagged(value)

    def _loaded(self) -> _eager._Call:
        """The call of the module, which is there now."""
        module = self._source.load(self._input)
        if _returns_named_tuple(module, self._method):
            raise _NotHereError(module)
        call = _eager._Call(module, self._input, self._scope, self._method)
        if call.address != self._address and not call._unidentified:
            call._unidentified = f"{self._source.name} was replaced while it was loaded"
        call.note_run()
        return call

    def _untagged(self, value: Any) -> Any:
        """The value. Of a class that this process does not know, the module brings it along."""
        try:
            return untagged(value)
        except UnknownClassError:
            self._source.load(self._input)
        try:
            return untagged(value)
        except UnknownClassError as reason:
            module = self._source.load(self._input)
            why = f"it was stored, but {reason}"
            return _eager.run_uncached(module, self._input, "key", self._method, why)


def _returns_named_tuple(module: torch.nn.Module, method: str) -> bool:
    """Whether a scripted method's results lose the names of their classes on the way to Python.

    What was found for a call that the library then makes is counted twice.
    """
    native: Any = getattr(module, "_c", None)
    if not isinstance(module, torch.jit.ScriptModule) or not native._has_method(method):
        return False
    returns = native._get_method(method).schema.returns
    return any("__torch__" in returned.type.annotation_str for returned in returns)
