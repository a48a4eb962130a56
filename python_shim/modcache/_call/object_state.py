# SPDX-License-Identifier: Apache-2.0
"""Whether two objects of one class hold the same: attributes, slots, and items or text.

Classes say themselves what their objects are made of, and may leave something out. An object that
was made of the parts tells whether they did.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch

from modcache._code.tokens import ATOMS
from modcache._identity.plain import plain_values_in

# The base classes that hold items. The first that fits is the one that knows their order.
_ITEMS: dict[type, Callable[[Any], Any]] = {
    OrderedDict: OrderedDict.items,
    dict: dict.items,
    list: list.__iter__,
    tuple: tuple.__iter__,
    deque: deque.__iter__,
}
_MOST_DEPTH = 64
_slots: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def attributes_and_slots(value: Any) -> dict[str, Any]:
    """Returns all that an object has under names. A property or ``__getattr__`` is never called."""
    kind = type(value)
    slots = _slots.get(kind)
    if slots is None:
        slots = _slots[kind] = {
            f"{base.__qualname__}.{name}": member
            for base in kind.__mro__
            for name, member in vars(base).items()
            if type(member) is types.MemberDescriptorType
        }
    found = dict(getattr(value, "__dict__", ()))
    for name, member in slots.items():
        try:
            found[name] = member.__get__(value)
        except AttributeError:  # an empty slot
            continue
    return found


def holds_same(one: Any, other: Any, but: frozenset[str] = frozenset(), depth: int = 0) -> bool:
    """Whether nothing tells apart two objects, which are of one class.

    Objects of classes that nothing is known of are the same only if they are one object.

    Args:
        one: an object of a class in a registry.
        other: another one.
        but: names of attributes that do not count.
        depth: in how many containers both are.
    """
    ours, theirs = attributes_and_slots(one), attributes_and_slots(other)
    if ours.keys() - but != theirs.keys() - but or depth > _MOST_DEPTH:
        return False
    if not all(is_same(ours[name], theirs[name], depth) for name in ours.keys() - but):
        return False
    if isinstance(one, (torch.Tensor, set, frozenset, bytearray)):
        return False
    items_of = next((get for base, get in _ITEMS.items() if isinstance(one, base)), None)
    if items_of is not None:
        return _are_same(list(items_of(one)), list(items_of(other)), depth)
    return _are_same(plain_values_in(one), plain_values_in(other), depth)


def is_same(one: Any, other: Any, depth: int = 0) -> bool:
    """Whether two values, of any classes, are one object or surely equal."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in ATOMS:
        return repr(one) == repr(other)  # tells -0.0 from 0.0
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _is_same_tensor(one, other)
    return kind in (dict, list, tuple) and holds_same(one, other, depth=depth + 1)


def _is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.requires_grad == other.requires_grad
        and one.dtype == other.dtype
        and one.device == other.device
        and torch.equal(one, other)
    )


def _are_same(ours: list[Any], theirs: list[Any], depth: int) -> bool:
    return len(ours) == len(theirs) and all(
        is_same(one, other, depth + 1) for one, other in zip(ours, theirs, strict=True)
    )
