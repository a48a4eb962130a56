# SPDX-License-Identifier: Apache-2.0
"""Looks at objects of any class without running their code.

The code that identifies modules meets whatever globals, closures and attributes hold. An object's
``__getattr__``, ``__getattribute__`` or ``__class__`` may raise, or import a package.
"""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

_T = TypeVar("_T")


def is_a(value: object, kinds: type[_T] | tuple[type[_T], ...]) -> TypeGuard[_T]:
    """Whether the class of ``value`` is one of ``kinds``, whatever its ``__class__`` says."""
    return issubclass(type(value), kinds)


def attribute_of(value: object, name: str, default: object = None) -> Any:
    """Returns an attribute as Python itself stores it.

    A ``__getattr__`` or ``__getattribute__`` of the value's class is passed by. A property that
    raises counts as no attribute.
    """
    get: Any = type.__getattribute__ if is_a(value, type) else object.__getattribute__
    try:
        return get(value, name)
    except Exception:
        return default


def shown_error(error: Exception) -> str:
    """Returns the class and the first line of an exception, as in "ImportError: no such package".

    The text of an exception is code of its class, which may raise, too.
    """
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name
