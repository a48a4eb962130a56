# SPDX-License-Identifier: Apache-2.0
"""The user's own classes among the values of an input. Their code may change what a call computes.

An address has the name of a named tuple's or an enum's class. If the class has methods or values of
its own, or an enum's members have attributes, the address also has a digest of these.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from modcache._call.arguments import Arguments
from modcache._call.registered import parts_of
from modcache._code.names import is_installed
from modcache._code.objects import attribute_of, is_a
from modcache._code.tokens import ATOMS
from modcache._identity.digest import digest_of
from modcache._identity.kinds import OF_ENUM, UnidentifiedError
from modcache._identity.observed import codes_of
from modcache._identity.records import Records
from modcache._identity.walk import Walk, walk_over

_VALUES = (*ATOMS, list, tuple, dict, set, frozenset)
_records: weakref.WeakKeyDictionary[type, Records] = weakref.WeakKeyDictionary()


def code_of_input_class(kind: type) -> str:
    """Returns a digest; "" for a class that is identified by its name.

    Raises:
        UnidentifiedError: its code cannot be followed.
    """
    walk = _walk_over(kind)
    return "" if walk is None else digest_of(walk.leaves)


def code_of_input(input: Any) -> set[types.CodeType]:
    """Returns the code of the classes that count in the address of this input."""
    found: set[types.CodeType] = set()
    for kind in set(_classes_in(input)):
        try:
            walk = _walk_over(kind)
            found.update(() if walk is None else codes_of(walk))
        except UnidentifiedError:
            continue
    return found


def _walk_over(kind: type) -> Walk | None:
    """Walks over a class; None if its name identifies it. Raises UnidentifiedError."""
    has_more = _has_methods(kind) or _has_attributes(kind) or _has_values(kind)
    if is_installed(kind) or not has_more:
        return None
    walk = walk_over(kind, _records.setdefault(kind, Records()))
    if walk.tensors:
        raise UnidentifiedError("its code reads tensors")
    return walk


def _has_methods(kind: type) -> bool:
    """Whether the class has handwritten methods, not only those that Python generates."""
    return any(
        not function.__code__.co_filename.startswith("<") and not is_installed(function)
        for base in kind.__mro__
        for member in list(vars(base).values())
        for function in _functions_of(member)
    )


def _has_values(kind: type) -> bool:
    """Whether the class itself holds plain values, not only those that Python generates."""
    return any(
        not name.startswith("_") and type(member) in _VALUES
        for base in kind.__mro__
        if not is_installed(base)
        for name, member in list(vars(base).items())
    )


def _functions_of(member: Any) -> Iterator[types.FunctionType]:
    parts = [member, *(attribute_of(member, name) for name in ("__func__", "fget", "func"))]
    yield from (part for part in parts if is_a(part, types.FunctionType))


def _has_attributes(kind: type) -> bool:
    return issubclass(kind, enum.Enum) and any(vars(member).keys() - OF_ENUM for member in kind)


def _classes_in(value: Any) -> Iterator[type]:
    if type(value) is Arguments:
        value = value.shown()
    if is_a(value, dict):
        if type(value) not in (dict, OrderedDict):
            yield type(value)
        value = [part for item in value.items() for part in item]
    if is_a(value, (tuple, list)):
        if type(value) is not tuple and is_a(value, tuple):
            yield type(value)
        for part in value:
            yield from _classes_in(part)
    elif is_a(value, enum.Enum):
        yield type(value)
    elif (parts := parts_of(value)) is not None:
        yield type(value)
        yield from _classes_in(list(parts))
