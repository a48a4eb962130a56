# SPDX-License-Identifier: Apache-2.0
"""The values in a module that a run may change, for calls whose scope the caller named.

Such a call needs no identity, so no code is followed, no package entered and no content hashed.
What is left are the rules of purity and gradients: a walk before and after a run finds attributes
that the run changed, and the tensors in reach.
"""

from __future__ import annotations

import array
import sys
import types
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from modcache._code.names import is_installed
from modcache._code.reads import MISSING
from modcache._code.scan import scan_of
from modcache._code.tokens import ATOMS
from modcache._code.wrapped import unwrapped
from modcache._identity.kinds import CALLABLE, NAMED, UnidentifiedError
from modcache._identity.records import Records
from modcache._identity.snapshot import Builder, Expected
from modcache._identity.tokenizers import way_of_tokenizer
from modcache._identity.walk import Walk, way_to_look_at
from modcache._library.compiled_part import guards

if TYPE_CHECKING:
    from modcache._guards import Snapshot

_DEEPEST = 32
_MAX_LEAVES = 100_000
_MAX_BYTES = 64 << 10  # of an array that is compared by its content


class StateWalk(Walk):
    """A walk over values, without code. It refuses nothing.

    ``passed_over`` has the ids of values that could not be read. A change inside of them is not
    seen.
    """

    def __init__(self, root: torch.nn.Module, records: Records) -> None:
        self.passed_over: set[int] = set()
        super().__init__(root, records, is_tolerant=True)

    def value(self, value: Any) -> None:
        kind = type(value)
        if kind in ATOMS:
            self.leaves.append(value)
            return
        if self.depth >= _DEEPEST or len(self.leaves) > _MAX_LEAVES:
            self._pass_over(value)
            return
        self.depth += 1
        depth = self.depth
        before = len(self.leaves), len(self.passed_over)
        try:
            named = self.named(kind)
            if named.state_way is None:
                named.state_way = _way_to_look_at(kind)
            named.state_way(self, value)
        except Exception:  # the value's own code, or a kind of value that is not read
            self._pass_over(value)
        # An object of a library that holds something unreadable, such as the locks of a thread
        # pool, keeps books of its own.
        if (
            len(self.passed_over) > before[1]
            and is_installed(kind)
            and not issubclass(kind, torch.nn.Module)
        ):
            del self.leaves[before[0] :]
            self._pass_over(value)
        self.depth = depth - 1

    def _pass_over(self, value: object) -> None:
        self.passed_over.add(id(value))
        self.leaves.append(type(value).__name__)

    def _is_special(self, module: torch.nn.Module) -> bool:
        try:
            return super()._is_special(module)
        except UnidentifiedError:
            self._pass_over(module)
            return True

    def _class(self, cls: type) -> None:
        self._classes[cls] = None
        for function in _written_by(cls):
            self._function(function)

    def named_class(self, cls: type) -> None:
        self.leaves += (NAMED, self.named(cls))

    def _function(self, function: types.FunctionType) -> None:
        """Reads what a function of the user's may have written: its cells, and some globals."""
        if not self._is_first_visit(function):
            return
        self.leaves.append(CALLABLE)
        if is_installed(function):
            return
        for held in (function.__defaults__, function.__kwdefaults__):
            self.value(held)
        for index, name in enumerate(function.__code__.co_freevars):
            if name != "__class__":
                self._owned(function.__qualname__, name, _in_cell(function, index))
        for name in sorted(scan_of(function.__code__).changed):
            self._owned("global", name, function.__globals__.get(name, MISSING))


def _written_by(cls: type) -> list[types.FunctionType]:
    """Returns the methods of the user's own classes in the MRO that may write outside of ``self``.

    These have cells, or code that writes a global.
    """
    found = []
    for base in cls.__mro__:
        if base is torch.nn.Module or is_installed(base):
            continue
        for member in map(unwrapped, list(vars(base).values())):
            if type(member) is types.FunctionType and (
                member.__closure__ or scan_of(member.__code__).changed
            ):
                found.append(member)
    return found


def _in_cell(function: types.FunctionType, index: int) -> object:
    try:
        return (function.__closure__ or ())[index].cell_contents
    except ValueError:  # not filled yet
        return MISSING


def _content(walk: StateWalk, value: Any) -> None:
    view = memoryview(value)
    if view.nbytes > _MAX_BYTES:
        raise UnidentifiedError("too large to be compared")
    walk.leaves += (str(view.format), str(view.shape), zlib.crc32(view.tobytes()))


def _passed_over(walk: StateWalk, value: Any) -> None:
    raise UnidentifiedError("it is not read")


def _way_to_look_at(kind: type) -> Callable[[Any, Any], None]:
    numpy: Any = sys.modules.get("numpy")
    if issubclass(kind, (bytearray, array.array)):
        return _content
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return _content
    if issubclass(kind, torch.jit.ScriptFunction) or way_of_tokenizer(kind) is not None:
        return _passed_over
    return way_to_look_at(kind)


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
        for function in _written_by(cls):
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
            if (defaults := getattr(function, name)) is not None:
                self._add(guards.IN_ATTRIBUTE, function, name, self.expected(defaults))
        for index, name in enumerate(function.__code__.co_freevars):
            if name != "__class__":
                self._add(
                    guards.IN_CELL,
                    function,
                    index,
                    self._expected_or_nothing(_in_cell(function, index)),
                )
        for name in sorted(scan_of(function.__code__).changed):
            value = function.__globals__.get(name, MISSING)
            self._named(function, name, self._expected_or_nothing(value))

    def _expected_or_nothing(self, value: object) -> Expected:
        return (guards.NOTHING,) if value is MISSING else self.expected(value)
