# SPDX-License-Identifier: Apache-2.0
"""Plain values of other types than atoms: objects of derived classes, paths, patterns, times."""

from __future__ import annotations

import datetime
import decimal
import operator
import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from modcache._code.names import is_packaged
from modcache._code.objects import is_a
from modcache._code.tokens import ATOMS

# How to read the value in an object of a class derived from a plain type, whatever it overrides.
_READERS: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}
SCALARS = tuple(_READERS)
_WITH_ZONE = (datetime.time, datetime.datetime)
# A class derived from one of these may keep more than its pickled form has.
TIMES_AND_DECIMALS = frozenset(
    {*_WITH_ZONE, datetime.date, datetime.timedelta, datetime.timezone, decimal.Decimal}
)
_PATHS = {type(pathlib.PurePath()), type(pathlib.Path())}
_HINTS = {types.GenericAlias, types.UnionType}
_IMMUTABLE = _PATHS | TIMES_AND_DECIMALS | _HINTS | {operator.attrgetter}


def plain_values_in(value: object) -> list[object]:
    """Returns the text or number that an object is too: class Celsius(float)."""
    return [read(value) for base, read in _READERS.items() if is_a(value, base)]


def is_constant(value: Any) -> bool:
    """Whether an object never changes and leads to nothing that may, apart from its class."""
    kind = type(value)
    if kind is re.Pattern:
        return type(value.pattern) in ATOMS
    if kind in _WITH_ZONE:
        return value.tzinfo is None or type(value.tzinfo) is datetime.timezone
    if kind in _IMMUTABLE or kind.__module__ == "typing":
        return True
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and is_a(value, numpy.generic):
        return kind.__module__ == "numpy" and not is_a(value, numpy.void)
    is_derived = is_a(value, SCALARS) and not hasattr(value, "__dict__")
    return is_derived and not slots_of(kind)


def is_bare_tuple(value: Any) -> bool:
    """Whether it is an object of a class derived from tuple that holds nothing but its items."""
    is_derived = is_a(value, tuple) and type(value).__iter__ is tuple.__iter__
    return is_derived and not hasattr(value, "__dict__") and not slots_of(type(value))


def slots_of(cls: type) -> list[str]:
    """Returns the names of all slots, as attributes of an object have them."""
    found = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if is_a(slots, str) else list(slots):
            if name.startswith("__") and not name.endswith("__"):  # private
                name = f"_{base.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__"):
                found.append(name)
    return found


def has_plain_attributes(kind: type) -> bool:
    """Whether the ``__dict__`` of its objects really holds their attributes."""
    holders = [vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)]
    if not holders or _getter_of(kind) not in _PLAIN_GETTERS:
        return False
    return all(type(holder) is types.GetSetDescriptorType for holder in holders)


def _getter_of(kind: Any) -> Any:
    return kind.__getattribute__


_PLAIN_GETTERS = frozenset(map(_getter_of, (object, *SCALARS)))


def are_attributes_plain(value: Any) -> bool:
    """Whether an object's ``__dict__`` holds its attributes, if its class is unusual."""
    kind = type(value)
    if kind is types.SimpleNamespace:
        return True
    if not hasattr(value, "__dict__"):
        return _getter_of(kind) is object.__getattribute__
    return is_packaged(kind) and value.__dict__ is object.__getattribute__(value, "__dict__")
