# SPDX-License-Identifier: Apache-2.0
"""Inputs in the form that the library takes.

The library reads tensors, None, bool, int, float, complex, text, devices, tuples of anything, and
lists and dicts of one type. It gets those as they are, so that eager and scripted calls have the
same addresses. Other values that can be described unambiguously (mixed or empty lists and dicts,
dtypes, enums, named tuples, ...) become a tuple that begins with a tag. The module gets the
original.
"""

from __future__ import annotations

import enum
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from modcache._call.arguments import Arguments
from modcache._call.input_classes import code_of_input_class
from modcache._code.names import plain_name, short_name
from modcache._identity.kinds import UnidentifiedError
from modcache._library.text import is_unicode

_TAG = "modcache:"  # no other tuple that the library gets begins with such a text
_DEEPEST = 64
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_AS_THEY_ARE = frozenset({*_PLAIN_TENSORS, bool, float, complex, type(None), torch.device})
_TOLD_BY_NAME = (torch.dtype, torch.layout, torch.memory_format)
_ONE_TYPE = [{torch.Tensor}, {int}, {float}, {bool}, {str}]


class _RefusedError(Exception):
    """The text names what cannot be shown."""


def shown(input: Any) -> tuple[Any, str]:
    """Returns what the library gets, and ""; or None, and the name of a value that it refuses."""
    if type(input) is torch.Tensor:
        return input, ""
    try:
        return _picture(input.shown() if type(input) is Arguments else input, 0), ""
    except _RefusedError as refusal:
        return None, str(refusal)


def is_taken_as_it_is(input: Any) -> bool:
    """Whether the operator takes ``input`` without a change of meaning to a scripted module."""
    if type(input) is Arguments:  # a tuple to torch, which would lose the names
        return False
    return type(input) is torch.Tensor or (_fits(input) and _infers(input))


def is_subclass(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) not in _PLAIN_TENSORS


def _picture(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else (f"{_TAG}int", hex(value))
    if kind is str:
        return _picture_of_text(value)
    if depth > _DEEPEST:
        raise _RefusedError(f"a value nested more than {_DEEPEST} levels deep")
    if kind is tuple:
        parts = tuple(_picture(part, depth + 1) for part in value)
        return value if _is_unchanged(parts, value) else parts
    if kind is list:
        parts = tuple(_picture(part, depth + 1) for part in value)
        if _is_unchanged(parts, value) and (set(map(type, value)) in _ONE_TYPE or _infers(value)):
            return value
        return (f"{_TAG}list", *parts)
    if kind is dict:
        return _picture_of_dict(value, depth)
    return _picture_of_other(value, depth)


def _is_unchanged(parts: tuple[Any, ...], value: Any) -> bool:
    return all(part is given for part, given in zip(parts, value, strict=True))


def _picture_of_text(value: str) -> Any:
    if not is_unicode(value):
        return (f"{_TAG}surrogates", value.encode("utf-8", "surrogatepass").hex())
    return (f"{_TAG}text", value) if value.startswith(_TAG) else value


def _picture_of_dict(value: dict[Any, Any], depth: int) -> Any:
    items = _pictures_of_items(value, depth)
    given = [part for item in dict.items(value) for part in item]
    if _is_unchanged(items, given) and value and _infers(value):
        return value
    return (f"{_TAG}dict", *items)


def _pictures_of_items(value: dict[Any, Any], depth: int) -> tuple[Any, ...]:
    for key in value:
        if isinstance(key, torch.Tensor):
            raise _RefusedError("a dict whose keys are tensors")
    return tuple(_picture(part, depth + 1) for item in value.items() for part in item)


def _picture_of_other(value: Any, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, _TOLD_BY_NAME):
        return (f"{_TAG}{kind.__name__}", str(value))
    if isinstance(value, enum.Enum):
        plain = _picture(value.value, depth + 1)
        return (f"{_TAG}enum", _name_of(kind), str(value.name), plain)
    if kind is OrderedDict:
        return (f"{_TAG}OrderedDict", *_pictures_of_items(value, depth))
    if kind is torch.Size or _is_named_tuple(value):
        parts = (_picture(part, depth + 1) for part in tuple(value))
        return (f"{_TAG}tuple", _name_of(kind), *parts)
    if kind is bytes:
        return (f"{_TAG}bytes", value.hex())
    if kind in (range, slice):
        parts = (_picture(part, depth + 1) for part in (value.start, value.stop, value.step))
        return (f"{_TAG}{kind.__name__}", *parts)
    if value is Ellipsis:
        return (f"{_TAG}...",)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject:
        return (f"{_TAG}numpy", _name_of(kind), value.dtype.str, value.tobytes().hex())
    if isinstance(value, Mapping):
        cure = "pass dict(batch) in its place, or call it with **batch"
        raise _RefusedError(f"a {short_name(kind)}; {cure}")
    raise _RefusedError(f"a {short_name(kind)}")


def _is_named_tuple(value: Any) -> bool:
    """Whether it holds nothing but its items."""
    kind = type(value)
    return (
        isinstance(value, tuple)
        and isinstance(getattr(kind, "_fields", None), tuple)
        and not getattr(value, "__dict__", None)
    )


def _name_of(kind: type) -> str:
    """Returns the name under which the class can be found, and no other class."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        raise _RefusedError(f"a {short_name(kind)}, a class that cannot be found under its name")
    try:
        code = code_of_input_class(kind)
    except UnidentifiedError as reason:
        raise _RefusedError(f"a {short_name(kind)}, since {reason}") from None
    return f"{plain_name(kind)}/{code}" if code else plain_name(kind)


def _infers(value: Any) -> bool:
    """Whether torch finds a type for a value."""
    try:
        return bool(torch._C._jit_try_infer_type(value).success())
    except Exception:  # a key that no dict of TorchScript can have; an object's own methods
        return False


def _fits(value: Any) -> bool:
    """Whether numbers have 64 bits at most, text is Unicode, and nothing is bytes or a subclass."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, bytes):  # the library would take it for text
        return False
    if isinstance(value, (tuple, list)):
        return all(map(_fits, value))
    if isinstance(value, dict):
        return all(map(_fits, value)) and all(map(_fits, value.values()))
    return not is_subclass(value)
