# SPDX-License-Identifier: Apache-2.0
"""Finds the functions and classes behind those that modcache.cached made.

A cached function computes what its target computes, so code that identifies functions looks through
it: ``unwrapped``. modcache.cached also adds members to classes, which are no code of the user's
(``is_left_here``), and makes proxy classes (``is_proxy_class``).

``functools.wraps`` copies attributes. So a decorator over a cached function has the same
attributes, although it does more than the target. A weak reference to the cached function tells
them apart.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch

# Attributes of a cached function: its target, and a weak reference to itself. Fingerprints may hold
# their names, where functools.wraps copied them.
_WRAPPED = "_modcache_plain"
_OWN = "_modcache_own"
# A method of a class with a cached ``forward``: that ``forward`` without the cache.
WRAPPED_FORWARD = "_modcache_forward"
# An attribute of a proxy class: the class of the instances that it was made for.
PROXIED = "_modcache_proxied"
# An attribute of a proxy class whose objects have a ``forward`` of their own, which is cached.
OWN_FORWARD = "_modcache_own_forward"


# The module of this package whose functions become members of classes.
_ADDING = "modcache._cached.module"


def mark_cached(function: Any, wrapped: Any) -> None:
    """Marks ``function`` as made of ``wrapped``."""
    setattr(function, _WRAPPED, wrapped)
    setattr(function, _OWN, weakref.ref(function))


def is_cached(function: Any) -> bool:
    """Whether ``modcache.cached`` returned this very function, not a wrapper of it."""
    if type(function) is not types.FunctionType:
        return False
    own = function.__dict__.get(_OWN)
    return own is not None and own() is function


def unwrapped(function: Any) -> Any:
    """Returns the target of a cached function, and any other value itself."""
    return function.__dict__[_WRAPPED] if is_cached(function) else function


def unwrapped_method(module: Any, method: str) -> Any:
    """Returns the module's method without the cache; None if it is not cached."""
    cls = type(module)
    function = getattr(cls, method, None)
    if not is_cached(function):
        return None
    if method in vars(module):
        return vars(module)[method] if has_own_method(cls, method) else None
    # The class behind a proxy class may have got another function since.
    return unwrapped_in(cls, method).__get__(module)


def has_own_method(cls: type, method: str) -> bool:
    """Whether the cached method of a proxy class stands for one in the objects themselves."""
    return method == "forward" and OWN_FORWARD in vars(cls)


def unwrapped_in(cls: type, method: str) -> Any:
    """Returns the function that runs for a cached method of this class.

    The class behind the proxy class of a lazy module has no methods of the module to be loaded.
    """
    return unwrapped(getattr(class_behind(cls), method, None) or getattr(cls, method))


def has_cached_forward(cls: type) -> bool:
    """Whether a plain call of an object of this class goes through the cache."""
    return is_cached(getattr(cls, "forward", None))


def are_hooks_outside(cls: type) -> bool:
    """Whether no cached value of an object of this class contains what its own hooks do.

    A cached ``forward`` is looked up inside of its module's own call, which has the hooks. Another
    cached method may make such a call.
    """
    members = (item for base in cls.__mro__ for item in vars(base).items())
    return has_cached_forward(cls) and not any(
        name != "forward" and is_cached(member) for name, member in members
    )


def is_forward_alone(cls: type) -> bool:
    """Whether its ``forward`` is cached, and a call of an object does more than that and hooks."""
    found: Any = cls
    return has_cached_forward(cls) and found.__call__ is not torch.nn.Module.__call__


def class_behind(cls: type) -> Any:
    """Returns the class behind a proxy class, and any other class itself."""
    return vars(cls).get(PROXIED) or cls


def is_proxy_class(cls: type) -> bool:
    return PROXIED in vars(cls)


def is_left_here(member: object) -> bool:
    """Whether ``modcache.cached`` added this member to a class."""
    if type(member) is classmethod:
        member = member.__func__
    return (
        type(member) is types.FunctionType
        and not is_cached(member)
        and (member.__name__ == WRAPPED_FORWARD or member.__globals__.get("__name__") == _ADDING)
    )
