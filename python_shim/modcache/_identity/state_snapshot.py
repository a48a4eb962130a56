# SPDX-License-Identifier: Apache-2.0
"""Makes a snapshot of the values in a module, for calls whose scope the caller named."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from modcache._code.names import is_installed
from modcache._code.reads import MISSING
from modcache._code.scan import scan_of
from modcache._identity.records import Records
from modcache._identity.snapshot import Builder, Expected
from modcache._identity.state_walk import StateWalk, in_cell, written_by
from modcache._library.compiled_part import guards

if TYPE_CHECKING:
    from modcache._guards import Snapshot


def snapshot_of_state(
    module: torch.nn.Module, walk: StateWalk, records: Records
) -> Snapshot | None:
    """Makes a snapshot of what a walk over values saw, without code, as ``snapshot_of`` does."""
    if guards is None:
        return None
    builder = _StateBuilder(walk, records)
    builder.module(module)
    return guards.Snapshot(builder.guards, builder.order)


class _StateBuilder(Builder):
    """Guards the values that a ``StateWalk`` read, without code."""

    def __init__(self, walk: StateWalk, records: Records) -> None:
        super().__init__(walk, records)
        self._passed_over = walk.passed_over

    def _named_class(self, cls: type) -> None:
        pass

    def _class(self, cls: type) -> None:
        for function in written_by(cls):
            self._function(function)

    def _object_expected(self, value: Any, kind: type) -> Expected:
        if kind is not types.FunctionType:
            return super()._object_expected(value, kind)
        self._function(value)
        return (guards.OBJECT, value)

    def _function(self, function: types.FunctionType) -> None:
        if not self._is_first_visit(function) or is_installed(function):
            return
        self._add(guards.IN_FUNCTION, function)
        for name in ("__defaults__", "__kwdefaults__"):
            self._add(guards.IN_ATTRIBUTE, function, name, self.expected(getattr(function, name)))
        for index, name in enumerate(function.__code__.co_freevars):
            if name != "__class__":
                self._add(
                    guards.IN_CELL,
                    function,
                    index,
                    self._expected_or_nothing(in_cell(function, index)),
                )
        for name in sorted(scan_of(function.__code__).changed):
            value = function.__globals__.get(name, MISSING)
            self._named(function, name, self._expected_or_nothing(value))

    def _expected_or_nothing(self, value: object) -> Expected:
        return (guards.NOTHING,) if value is MISSING else self.expected(value)
