# SPDX-License-Identifier: Apache-2.0
"""The user's own classes among the values of an input: their code is part of what a call computes.

An address has the name of a named tuple's or an enum's class. Where the class has methods of its
own, or an enum's members have attributes, it has a digest of these as well.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from modcache._arguments import Arguments
from modcache._digest import digest_of
from modcache._kinds import OF_ENUM, UnidentifiedError
from modcache._names import is_installed
from modcache._observed import codes_of
from modcache._records import Records
from modcache._walk import Walk

_records: weakref.WeakKeyDictionary[type, Records] = weakref.WeakKeyDictionary()


def code_of_input_class(kind: type) -> str:
    """A digest; "" for a class that is told by its name.

    Raises:
        UnidentifiedError: its code cannot be followed.
    """
    walk = _walk_over(kind)
    return "" if walk is None else digest_of(walk.leaves)


def code_of_input(input: Any) -> set[types.CodeType]:
    """The code of the classes that count in the address of this input."""
    found: set[types.CodeType] = set()
    for kind in set(_classes_in(input)):
        try:
            walk = _walk_over(kind)
            found.update(() if walk is None else codes_of(walk))
        except UnidentifiedError:
            continue
    return found


def _walk_over(kind: type) -> Walk | None:
    """None for a class that is told by its name. Raises UnidentifiedError."""
    if is_installed(kind) or not (_has_methods(kind) or _has_attributes(kind)):
        return None
    holder = torch.nn.Module()
    holder.__dict__["value"] = kind
    walk = Walk(holder, _records.setdefault(kind, Records()))
    if walk.tensors:
        raise UnidentifiedError("its code reads tensors")
    return walk


def _has_methods(kind: type) -> bool:
    """Whether somebody wrote some: what makes named tuples and enums writes others."""
    return any(
        not function.__code__.co_filename.startswith("<") and not is_installed(function)
        for base in kind.__mro__
        for member in list(vars(base).values())
        for function in _functions_of(member)
    )


def _functions_of(member: Any) -> Iterator[types.FunctionType]:
    parts = [member, *(getattr(member, name, None) for name in ("__func__", "fget", "func"))]
    yield from (part for part in parts if isinstance(part, types.FunctionType))


def _has_attributes(kind: type) -> bool:
    return issubclass(kind, enum.Enum) and any(vars(member).keys() - OF_ENUM for member in kind)


def _classes_in(value: Any) -> Iterator[type]:
    if type(value) is Arguments:
        value = value.shown()
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    if isinstance(value, (tuple, list)):
        if type(value) is not tuple and isinstance(value, tuple):
            yield type(value)
        for part in value:
            yield from _classes_in(part)
    elif isinstance(value, enum.Enum):
        yield type(value)
