# SPDX-License-Identifier: Apache-2.0
"""Structured values on their way into the library and back.

torch's matcher takes neither lists of mixed types nor Python's own classes, so containers travel
as tagged tuples; tensors and plain values stand for themselves::

    ("(", items)  ("[", items)  ("{", keys, values)  ("N", class, fields, items)
    ("o", class, context, items)  ("?", why it cannot be stored)

"o" is a class that the pytree registry knows, such as Hugging Face's ModelOutput, or that
``registered`` does; or one of ``carriers``, for data of other libraries. Reading a value
imports no module of the user's, and runs no code but that which rebuilds values of a class that
this process has loaded. The module cannot return a value of a class that is not loaded.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modcache._call.carriers import CARRIERS, RESTORED, carrier_of, has_rows
from modcache._call.registered import (
    TakenApart,
    encodings_of,
    given_context,
    is_registered,
    node_of,
    rebuilt,
    registered_class,
    stored_context,
    taken_apart,
)
from modcache._code.objects import is_a
from modcache._library.text import is_unicode

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (type(None), bool, float, complex)
_NONE: Mapping[str, Callable[..., Any]] = {}
_MOST_DEPTH = 60  # the library's own bound is 64


class UnknownClassError(Exception):
    """A stored value is of a class that this process does not know, or that refuses it."""


def tagged(value: Any, depth: int = 0, *, is_rows: bool = False) -> Any:
    """Returns the value as the library reads it. A part that cannot be stored is ("?", why).

    ``is_rows``: it is the output of a batch with one key per row, and its tensors have its rows.
    """
    kind = type(value)
    if kind in _TENSORS or kind in _PLAIN:
        return value
    if kind is str:
        return value if is_unicode(value) else _refused("text with lone surrogates")
    if kind is int:
        return value if -(2**63) <= value < 2**63 else _refused("an integer beyond 64 bits")
    if depth > _MOST_DEPTH:
        return _refused("a value nested too deeply")
    if kind is tuple or kind is list:
        return ("(" if kind is tuple else "[", _all_tagged(value, depth, is_rows))
    if kind is dict:
        if all(map(_is_key, value)):
            return ("{", tuple(value), _all_tagged(value.values(), depth, is_rows))
        return _refused("a dict with keys that are neither str nor int")
    return _tagged_object(value, depth, is_rows)


def _tagged_object(value: Any, depth: int, is_rows: bool) -> Any:
    kind = type(value)
    if kind is TakenApart:
        return _tagged_parts(value, depth, is_rows)
    if kind in CARRIERS:
        return ("o", _name_of(kind), "null", _all_tagged(value, depth, is_rows))
    if _is_named_tuple(kind) and not is_registered(kind) and _is_found(kind):
        if getattr(value, "__dict__", None):
            return _refused(f"a {_name_of(kind)} with attributes beside its fields")
        return ("N", _name_of(kind), _fields_of(kind), _all_tagged(value, depth, is_rows))
    carrier = carrier_of(value)
    if carrier is not None and (has_rows(carrier) or not is_rows):
        return _tagged_object(carrier, depth, is_rows)
    if is_a(value, torch.Tensor):
        return _refused("a tensor subclass")
    if encodings_of(value):  # a hit would be without them
        return _refused(f"a {_name_of(kind)} with a tokenizer's encodings; return dict(batch)")
    apart = taken_apart(value)
    if apart is None:
        return _refused(f"a value of type {_name_of(kind)}")
    return _tagged_parts(apart, depth, is_rows)


def untagged(value: Any, special: Mapping[str, Callable[..., Any]] = _NONE) -> Any:
    """Inverts ``tagged``. Raises UnknownClassError, and nothing else.

    ``special``: by the name of a named tuple's class, a function that makes another value of its
    fields.
    """
    try:
        return _untagged(value, special)
    except UnknownClassError:
        raise
    except Exception as error:  # the class's own code
        text = f"{type(error).__name__}: {error}"
        raise UnknownClassError(f"a class in it cannot be rebuilt ({text})") from None


def _untagged(value: Any, special: Mapping[str, Callable[..., Any]]) -> Any:
    if type(value) is not tuple:
        return value
    tag = value[0]
    if tag == "{":
        return dict(zip(value[1], [_untagged(item, special) for item in value[2]], strict=True))
    items = [_untagged(item, special) for item in value[-1]]
    if tag == "(":
        return tuple(items)
    if tag == "[":
        return items
    name = value[1]
    if tag == "N" and name in special:
        return special[name](*items)
    if tag == "N":
        return _named_class(name, value[2])._make(items)
    if name in RESTORED:
        return RESTORED[name](*items)
    kind = _class_of(name)
    if not isinstance(kind, type) or node_of(kind) is None:
        raise UnknownClassError(f"the pytree registry of this process has no {name}")
    return rebuilt(kind, items, given_context(kind, value[2]))


def _refused(why: str) -> tuple[str, str]:
    return ("?", why)


def _is_key(key: Any) -> bool:
    if type(key) is str:
        return is_unicode(key)
    return type(key) is int and -(2**63) <= key < 2**63


def _all_tagged(values: Any, depth: int, is_rows: bool) -> tuple[Any, ...]:
    return tuple(tagged(value, depth + 1, is_rows=is_rows) for value in values)


def _tagged_parts(value: TakenApart, depth: int, is_rows: bool) -> tuple[Any, ...]:
    name = _name_of(value.kind)
    if _class_of(name) is not value.kind:
        return _refused(f"a value of type {name}, which cannot be found under this name")
    return ("o", name, stored_context(value), _all_tagged(value.parts, depth, is_rows))


def _name_of(kind: type) -> str:
    # __mp_main__ in a spawned worker is the parent's __main__.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _is_named_tuple(kind: object) -> bool:
    """Whether it is a named tuple. torch.Size and torch.return_types.max are none."""
    return isinstance(kind, type) and pytree.is_namedtuple_class(kind)


def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(kind._fields)


def _class_named(name: str) -> Any:
    """Finds what a qualified name means in the loaded modules; None if there is nothing."""
    name = name.removeprefix("__torch__.")
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:end]))
        if found is None:
            continue
        for part in parts[end:]:
            found = _member(found, part)
        return found
    return None


def _class_of(name: str) -> Any:
    """Finds a class in the loaded modules, or among those that register_value names."""
    return _class_named(name) or registered_class(name)


def _member(owner: Any, name: str) -> Any:
    """Finds a member without calling a module's own __getattr__, which may import others."""
    if isinstance(owner, types.ModuleType):
        return types.ModuleType.__getattribute__(owner, "__dict__").get(name)
    if isinstance(owner, type):
        return type.__getattribute__(owner, "__dict__").get(name)
    return None


def _is_found(kind: Any) -> bool:
    try:
        return _named_class(_name_of(kind), _fields_of(kind)) is kind
    except UnknownClassError:
        return False


def _named_class(name: str, fields: tuple[str, ...]) -> Any:
    """Finds the named tuple's class; makes one if this process has none of that name and fields."""
    found = _class_named(name)
    if _is_named_tuple(found) and _fields_of(found) == fields:
        return found
    return _made_up(name.rpartition(".")[2], fields)


@functools.lru_cache(maxsize=256)
def _made_up(name: str, fields: tuple[str, ...]) -> Any:
    try:
        return collections.namedtuple(name, fields)
    except ValueError as error:
        raise UnknownClassError(f"no named tuple can be made for {name}: {error}") from None
