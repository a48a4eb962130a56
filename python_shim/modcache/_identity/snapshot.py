# SPDX-License-Identifier: Apache-2.0
"""Makes a snapshot of what a walk saw, which the compiled part compares at later calls.

A snapshot (python_shim/native/snapshot.h) guards every place that a walk would read. It is at least
as strict as a walk: while it holds, a walk would find the same leaves and tensors. A module with a
value that a snapshot cannot express exactly is refused, and then walked at every call.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.nn.modules import module as torch_module

from modcache._code.names import (
    is_installed,
    is_installed_module,
    is_packaged,
    is_plain_metaclass,
    parts_of_member,
    trusted_name,
)
from modcache._code.operators import (
    KERNELS,
    Operator,
    definition_of,
    definitions,
    functions_inside,
)
from modcache._code.operators import (
    PARTS as PARTS_OF_OPERATOR,
)
from modcache._code.reads import MISSING, Code, Read
from modcache._code.tokens import ATOMS
from modcache._identity.contents import TENSOR_TYPES
from modcache._identity.kinds import PARTS, array_way
from modcache._identity.packages import guard_with, package_records
from modcache._identity.plain import (
    SCALARS,
    are_attributes_plain,
    has_plain_attributes,
    is_bare_tuple,
    is_constant,
    slots_of,
)
from modcache._identity.records import Records
from modcache._identity.scratch import scratch_of
from modcache._identity.walk import Walk, way_to_look_at
from modcache._library.compiled_part import guards

if TYPE_CHECKING:
    from modcache._guards import Snapshot

# Expected values of guards, and guards, in the form that the constructor of Snapshot takes.
Expected = tuple[Any, ...]
_Guard = tuple[Any, ...]


class RefusedError(Exception):
    """The text names the type that no snapshot can express."""


class _BytesError(RefusedError):
    """A value that changes in place, as an array does."""


def snapshot_of(module: torch.nn.Module, walk: Walk, records: Records) -> Snapshot | None:
    """Makes a snapshot of what ``walk`` saw; None if this package has no compiled part.

    Raises:
        RefusedError: the module holds something that a snapshot cannot express.
    """
    if guards is None:
        return None
    builder = Builder(walk, records)
    builder.module(module)
    try:
        return guards.Snapshot(builder.guards, builder.order)
    except TypeError as error:
        raise RefusedError(str(error)) from None


def _guarded_packages(
    code: Code, reads: list[Read], walk: Walk
) -> tuple[Snapshot | None, list[Read]]:
    """Makes a snapshot of a walk over packages, and returns the reads that it cannot express."""
    if guards is None:
        return None, []
    builder = Builder(walk, package_records)
    builder.held_by(code)
    for cls in code.classes():
        builder.add_class(cls)
    loose = []
    for read in reads:
        try:
            builder.read(read)
        except RefusedError:
            loose.append(read)
    return (None if loose else guards.Snapshot(builder.guards, builder.order)), loose


guard_with(_guarded_packages)


class Builder:
    """Follows a module to all that a walk over it reads, and guards it."""

    def __init__(self, walk: Walk, records: Records) -> None:
        self.guards: list[_Guard] = []
        self._records = records
        self._is_lenient = walk.lenient is not None
        self._passed_over = walk.lenient.passed_over if walk.lenient is not None else set()
        self._seen: set[int] = set()  # ids of what the walk keeps alive, or a module holds
        self._numbers: dict[int, int] = {}  # numbers of tensors, by id
        self.order = [
            self._numbers.setdefault(id(tensor), len(self._numbers))
            for tensor in walk.own_tensors()
        ]
        held = vars(torch_module)
        for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
            self._add(guards.IN_ITEM, held, name, self.expected(held[name]))

    def _add(self, *guard: Any) -> None:
        self.guards.append(guard)

    def _is_first_visit(self, value: object) -> bool:
        is_first = id(value) not in self._seen
        self._seen.add(id(value))
        return is_first

    def expected(self, value: Any) -> Expected:
        """Describes what must be found again where ``value`` was found."""
        kind = type(value)
        if kind in ATOMS:
            return (guards.VALUE, value)
        if id(value) in self._passed_over:
            return _identity(value)
        if kind in TENSOR_TYPES:
            return self._tensor(value)
        if kind in (list, tuple, torch.Size, set, frozenset, deque) or is_bare_tuple(value):
            self._named_class(kind)
            return (guards.ITEMS, kind, *map(self.expected, value))
        if kind in (dict, OrderedDict):
            return self._mapping(value)
        if not self._is_lenient:
            return self._object_expected(value, kind)
        try:
            return self._of_package(value, kind)
        except _BytesError:
            raise
        except RefusedError:
            return _identity(value)

    def _of_package(self, value: Any, kind: type) -> Expected:
        """Describes a value of a package; one that cannot be expressed, by its identity."""
        if way_to_look_at(kind) is array_way:
            raise _BytesError(f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(value, dict):
            if hasattr(value, "__dict__") and self._is_first_visit(value):
                self._add(guards.IN_ATTRIBUTES, value, self._mapping(vars(value)))
            return self._mapping(value)
        if not (kind in PARTS or is_constant(value) or _is_watchable(value)):
            return self._unwatched(value, kind)
        return self._object_expected(value, kind)

    def _object_expected(self, value: Any, kind: type) -> Expected:
        if kind in PARTS:
            parts = PARTS[kind]
            return (guards.PARTS, kind, parts, *(self.expected(getattr(value, p)) for p in parts))
        if is_constant(value):
            self._named_class(kind)
            return (guards.VALUE, value)
        look = _LOOKS.get(kind)
        if look is not None:
            look(self, value)
        elif isinstance(value, torch.nn.Module):
            self.module(value)
        elif kind is CustomOpDef:
            self._definition(value)
        elif isinstance(value, type):
            self._named_class(value)
        elif isinstance(value, enum.Enum) or way_to_look_at(kind) is Walk._object:
            self._object(value)
        else:
            raise RefusedError(f"{kind.__module__}.{kind.__qualname__}")
        return (guards.OBJECT, value)

    def _unwatched(self, value: Any, kind: type) -> Expected:
        """Describes an object without weak references by its attributes."""
        is_object = way_to_look_at(kind) is Walk._object and are_attributes_plain(value)
        if is_object and isinstance(value, SCALARS):
            raise _BytesError(f"a {kind.__qualname__}, whose slots may change")
        if not is_object or not self._is_first_visit(value):
            return _identity(value)
        parts = [name for name in ("__dict__", *slots_of(kind)) if hasattr(value, name)]
        expected = (self.expected(getattr(value, name)) for name in parts)
        return (guards.PARTS, kind, tuple(parts), *expected)

    def _tensor(self, value: torch.Tensor) -> Expected:
        number = self._numbers.get(id(value))
        if number is None:
            raise RefusedError("a tensor that no walk saw")
        return (guards.TENSOR, number, type(value))

    def _mapping(self, value: dict[Any, Any], unseen: Collection[str] = ()) -> Expected:
        # A derived class may do anything in its own ``items``, such as importing what it names.
        items = OrderedDict.items(value) if type(value) is OrderedDict else dict.items(value)
        parts: list[Expected] = []
        for key, item in items:
            is_unseen = type(key) is str and key in unseen
            parts.append(self.expected(key))
            parts.append((guards.ANYTHING,) if is_unseen else self.expected(item))
        return (guards.MAPPING, type(value), *parts)

    def module(self, module: torch.nn.Module) -> None:
        if not self._is_first_visit(module):
            return
        attributes = module.__dict__
        is_special = isinstance(module, torch.jit.ScriptModule) or "training" not in attributes
        if is_special or slots_of(type(module)) or not has_plain_attributes(type(module)):
            raise RefusedError(f"a {type(module).__qualname__}")
        unseen = self._records.modules[id(module)].unseen
        self._add(guards.IN_ATTRIBUTES, module, self._mapping(attributes, unseen))
        self._class(type(module))

    def _object(self, value: Any) -> None:
        if not self._is_first_visit(value):
            return
        kind = type(value)
        if not has_plain_attributes(kind) and not are_attributes_plain(value):
            raise RefusedError(f"{kind.__qualname__}, which has attributes of its own making")
        self._named_class(kind)
        if hasattr(value, "__dict__"):
            held = self._mapping(vars(value), scratch_of(kind))
            self._add(guards.IN_ATTRIBUTES, value, held)
        for name in slots_of(kind):
            found = getattr(value, name, MISSING)
            expected = (guards.NOTHING,) if found is MISSING else self.expected(found)
            self._add(guards.IN_ATTRIBUTE, value, name, expected)

    def _named_class(self, cls: type) -> None:
        if not is_installed(cls):
            self._class(cls)

    def _class(self, cls: type) -> None:
        if not self._is_first_visit(cls):
            return
        self._add(guards.IN_CLASS, cls)
        for base in cls.__mro__:
            if base not in (torch.nn.Module, object):
                for name, member in vars(base).items():
                    self._member(base, name, member)
        self._code(self._records.of_class(cls).code)
        if not is_plain_metaclass(cls):
            self._named_class(type(cls))

    def _member(self, base: type, name: str, member: object) -> None:
        """Guards the parts of a member, which may change while the class stays the same."""
        for part in parts_of_member(member):
            expected = _identity(getattr(member, part))
            self._add(guards.IN_MEMBER_PART, base, name, part, expected)

    def _function(self, function: types.FunctionType) -> None:
        if not self._is_first_visit(function) or is_packaged(function):
            return
        if trusted_name(function):
            self._trusted(function)
            return
        known = self._records.functions.get(id(function))
        if known is None or known[0]() is not function:
            raise RefusedError(f"{function.__qualname__}, which no walk saw")
        self._code(known[1])

    def _trusted(self, value: Any) -> None:
        """Guards the name by which the walk identified the value."""
        found: Any = sys.modules[value.__module__]
        self._add(guards.IN_ITEM, sys.modules, value.__module__, (guards.OBJECT, found))
        for part in str(getattr(value, "__qualname__", value.__name__)).split("."):
            inner = getattr(found, part)
            self._add(guards.IN_ATTRIBUTE, found, part, (guards.OBJECT, inner))
            found = inner

    def _builtin(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        if isinstance(owner, types.ModuleType) and is_installed_module(owner):
            return
        if isinstance(owner, type):
            self._named_class(owner)
        elif owner is not None:
            raise RefusedError(f"a method of a {type(owner).__qualname__}")

    def _cached_function(self, value: Any) -> None:  # functools.lru_cache
        self._add(guards.IN_ATTRIBUTE, value, "__wrapped__", self.expected(value.__wrapped__))

    def _known_by_name(self, value: types.ModuleType | logging.Logger) -> None:
        name = "__name__" if isinstance(value, types.ModuleType) else "name"
        self._add(guards.IN_ATTRIBUTE, value, name, (guards.VALUE, getattr(value, name)))

    def _code(self, code: Code) -> None:
        if not self._is_first_visit(code):
            return
        self.held_by(code)
        for read in code.reads:
            self.read(read)

    def add_class(self, cls: type | None) -> None:
        if cls is None:
            raise RefusedError("code that was freed")
        self._add(guards.IN_CLASS, cls)
        for name, member in vars(cls).items():
            self._member(cls, name, member)

    def held_by(self, code: Code) -> None:
        for owner, name, value in code.held():
            expected = (guards.NOTHING,) if value is MISSING else _identity(value)
            self._named(owner, name, expected)
        for function in code.functions():
            self._add(guards.IN_FUNCTION, function)

    def _named(self, owner: object, name: str, expected: Expected) -> None:
        """Guards a name in the globals of a function, or in a Python module."""
        if isinstance(owner, types.FunctionType):
            self._add(guards.IN_GLOBAL, owner, name, expected)
        elif type(owner) is types.ModuleType:
            self._add(guards.IN_ATTRIBUTE, owner, name, expected)
        else:  # a lazy module may answer otherwise than it holds
            self._add(guards.IN_ITEM, vars(owner), name, expected)

    def read(self, read: Read) -> None:
        owner: Any = read.owner()
        value: Any = (read.guarded or read.value)()
        if owner is None:
            raise RefusedError("code that was freed")
        if read.kind == "operator":
            self.guards += _guards_of_operator(value)
            if definition := definition_of(value.name):
                self._definition(definition)
            return
        expected = (guards.NOTHING,) if value is MISSING else self.expected(value)
        if read.kind == "global":
            self._named(owner, read.name, expected)
        elif read.kind == "member" and len(read.path) == 1:
            self._add(guards.IN_MEMBER, owner, read.path[0], expected)
        elif read.kind == "member" and len(read.path) == 2:
            self._add(guards.IN_MEMBER_PART, owner, *read.path, expected)
        elif read.kind == "mode":
            raise RefusedError(f"code that asks {read.name}()")
        elif read.kind == "attribute":
            self._add(guards.IN_ATTRIBUTE, owner, read.path[0], expected)
        elif read.kind == "cell":
            self._add(guards.IN_CELL, owner, read.path[0], expected)
        else:
            raise RefusedError(f"a part of the class attribute {read.name}")

    def _definition(self, definition: Any) -> None:
        if self._is_first_visit(definition):
            self.guards += _guards_of_definition(definition, self.expected)


def _identity(value: object) -> Expected:
    """Describes a value by its identity. Its parts are guarded elsewhere, or do not count."""
    if type(value) in ATOMS:
        return (guards.VALUE, value)
    # An object without weak references is held: it belongs to a trusted module or to a package.
    return (guards.OBJECT if _is_watchable(value) else guards.VALUE, value)


def _is_watchable(value: object) -> bool:
    try:
        weakref.ref(value)
    except TypeError:
        return False
    return True


def _guards_of_operator(operator: Operator) -> Iterator[_Guard]:
    """Guards which definition has the operator's name."""
    known = definitions().data
    held = known.get(operator.name)
    expected = (guards.NOTHING,) if held is None else (guards.VALUE, held)
    yield guards.IN_ITEM, known, operator.name, expected


def _guards_of_definition(
    definition: Any, expected: Callable[[Any], tuple[Any, ...]]
) -> Iterator[_Guard]:
    """Guards what ``torch.library.custom_op`` made. ``expected`` guards a value and its parts."""
    for part in PARTS_OF_OPERATOR:
        yield guards.IN_ATTRIBUTE, definition, part, expected(getattr(definition, part, None))
    kernels = getattr(definition, KERNELS)
    items: list[tuple[Any, ...]] = []
    for device, kernel in kernels.items():
        items += ((guards.VALUE, device), (guards.OBJECT, kernel))
        expected(functions_inside(kernel))
    yield guards.IN_ATTRIBUTE, definition, KERNELS, (guards.MAPPING, dict, *items)


_LOOKS: dict[type, Callable[[Builder, Any], None]] = {
    types.FunctionType: Builder._function,
    types.BuiltinFunctionType: Builder._builtin,
    types.ModuleType: Builder._known_by_name,
    logging.Logger: Builder._known_by_name,
    type(functools.lru_cache(maxsize=1)(repr)): Builder._cached_function,
}
