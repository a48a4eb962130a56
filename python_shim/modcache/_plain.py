# SPDX-License-Identifier: Apache-2.0
"""What modcache.cached was given, found behind what it returned.

A cached function computes what its target computes, so whoever identifies code looks through it:
``plain_of``. In a class it also leaves members that are no code of the user's (``is_left_here``),
and makes classes that only stand before one (``is_face``).

``functools.wraps`` copies the attributes of what it wraps: a decorator over a cached function has
them too, and does more than the target. So they say whose they are.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch

# Attributes of a cached function: the function that it was made of, and a weak reference to itself.
_PLAIN = "_modcache_plain"
_OWN = "_modcache_own"
# A method of a class with a cached ``forward``: that ``forward`` without the cache.
PLAIN_FORWARD = "_modcache_forward"
# An attribute of a class that was made for cached instances of another, and that other's name.
FACE = "_modcache_face"


def mark_cached(function: Any, plain: Any) -> None:
    """From now on ``function`` is known to be made of ``plain``."""
    setattr(function, _PLAIN, plain)
    setattr(function, _OWN, weakref.ref(function))


def is_cached(function: Any) -> bool:
    """Whether this is what ``modcache.cached`` returned for a function, not a wrapper of that."""
    if not isinstance(function, types.FunctionType):
        return False
    own = function.__dict__.get(_OWN)
    return own is not None and own() is function


def plain_of(function: Any) -> Any:
    """The target of a cached function; anything else as it is."""
    return function.__dict__[_PLAIN] if is_cached(function) else function


def plain_method(module: Any, method: str) -> Any:
    """The method of this module without the cache; None where it is not cached."""
    cls = type(module)
    function = getattr(cls, method, None)
    if not is_cached(function) or method in vars(module):
        return None
    plain = plain_of(function)
    if FACE in vars(cls):  # its class may have been given another one since
        plain = plain_of(getattr(vars(cls)[FACE], method))
    return plain.__get__(module)


def plain_forward_of(cls: Any) -> Any:
    """The function that runs for a cached ``forward`` of this class."""
    return plain_of((vars(cls).get(FACE) or cls).forward)


def has_cached_forward(cls: type) -> bool:
    """Whether a call of an object of this class goes through the cache by itself."""
    return is_cached(getattr(cls, "forward", None))


def has_own_call(cls: type) -> bool:
    """Whether a call of an object of this class does more than ``forward`` and hooks."""
    found: Any = cls
    return found.__call__ is not torch.nn.Module.__call__


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
        and not is_cached(member)
        and (
            member.__name__ == PLAIN_FORWARD
            or member.__globals__.get("__name__") == "modcache._cached_module"
        )
    )
