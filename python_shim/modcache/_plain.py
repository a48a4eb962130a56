# SPDX-License-Identifier: Apache-2.0
"""What modcache.cached was given, found behind what it returned.

A cached function computes what its target computes, so whoever identifies code looks through it:
``plain_of``. In a class it also leaves members that are no code of the user's (``is_left_here``),
and makes classes that only stand before one (``is_face``).
"""

from __future__ import annotations

import types
from typing import Any

# An attribute of a cached function: the function that it was made of.
PLAIN = "_modcache_plain"
# A method of a class with a cached ``forward``: that ``forward`` without the cache.
PLAIN_FORWARD = "_modcache_forward"
# An attribute of a class that was made for cached instances of another, and that other's name.
FACE = "_modcache_face"


def plain_of(function: Any) -> Any:
    """The target of a cached function; anything else as it is."""
    return getattr(function, PLAIN, function)


def plain_method(module: Any, method: str) -> Any:
    """The method of this module without the cache; None where it is not cached."""
    cls = type(module)
    plain = getattr(getattr(cls, method, None), PLAIN, None)
    if plain is None or method in vars(module):
        return None
    if FACE in vars(cls):  # its class may have been given another one since
        plain = plain_of(getattr(vars(cls)[FACE], method))
    return plain.__get__(module)


def has_cached_forward(cls: type) -> bool:
    """Whether a call of an object of this class goes through the cache by itself."""
    return hasattr(getattr(cls, "forward", None), PLAIN)


def class_behind(cls: type) -> type:
    """The class before which a face stands; any other class as it is."""
    return vars(cls).get(FACE) or cls


def is_face(cls: type) -> bool:
    return FACE in vars(cls)


def is_left_here(member: object) -> bool:
    """Whether ``modcache.cached`` has put this member into a class."""
    if isinstance(member, classmethod):
        member = member.__func__
    return (
        isinstance(member, types.FunctionType)
        and not hasattr(member, PLAIN)
        and (member.__name__ == PLAIN_FORWARD or member.__module__ == "modcache._cached_module")
    )
