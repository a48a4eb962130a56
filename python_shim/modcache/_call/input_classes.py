# SPDX-License-Identifier: Apache-2.0
"""The user's own classes among the values of an input. Their code may change what a call computes.

An address has the name of a named tuple's or an enum's class. If the class has methods or values of
its own, or an enum's members have attributes, the address also has a digest of these.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Iterator
from typing import Any

from modcache._code.names import is_installed
from modcache._code.objects import attribute_of, is_a
from modcache._code.tokens import ATOMS
from modcache._identity.digest import digest_of
from modcache._identity.kinds import OF_ENUM, UnidentifiedError
from modcache._identity.records import Records
from modcache._identity.walk import walk_over

_VALUES = (*ATOMS, list, tuple, dict, set, frozenset)
_records: weakref.WeakKeyDictionary[type, Records] = weakref.WeakKeyDictionary()


def code_of_input_class(kind: type) -> str:
    """Returns a digest; "" for a class that is identified by its name.

    Raises:
        UnidentifiedError: its code cannot be followed.
    """
    has_more = _has_methods(kind) or _has_attributes(kind) or _has_values(kind)
    if is_installed(kind) or not has_more:
        return ""
    walk = walk_over(kind, _records.setdefault(kind, Records()))
    if walk.tensors:
        raise UnidentifiedError("its code reads tensors")
    return digest_of(walk.leaves)


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
