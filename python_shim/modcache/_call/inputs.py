# SPDX-License-Identifier: Apache-2.0
"""Inputs in the form that the library takes.

The library reads tensors, None, bool, int, float, complex, text, devices, tuples of anything, and
lists and dicts of one type. It gets those as they are, so that eager and scripted calls have the
same addresses. Other values that can be described unambiguously (mixed or empty lists and dicts,
dtypes, enums, named tuples, mappings, ...) become a tuple that begins with a tag. So do arrays and
images, whose data stand in it as tensors. With one key per row, what belongs to every row (a tensor
with a first size of 1 beside others with one per key, an image) stands in it by a digest of its
content. The module gets the original.
"""

from __future__ import annotations

import enum
import sys
from collections import OrderedDict, UserDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from modcache._call.arguments import Arguments
from modcache._call.carriers import (
    UnviewableError,
    are_images,
    is_array,
    is_image,
    is_tv_tensor,
    tensor_of_array,
    view_of_image,
    view_of_images,
    view_of_shared_image,
    view_of_tv_tensor,
)
from modcache._call.content import content_key
from modcache._call.input_classes import code_of_input_class
from modcache._call.parts import (
    PLAIN_TENSORS,
    WHOLE,
    has_rows,
    has_unclear_list,
    is_of_every_row,
    is_subclass,
    tensors_in,
)
from modcache._call.registered import (
    attributes_and_slots,
    attributes_of,
    is_filled_by_runs,
    is_registered,
    taken_apart,
)
from modcache._code.names import plain_name, short_name
from modcache._code.objects import is_a, shown_error
from modcache._identity.kinds import UnidentifiedError
from modcache._library.text import is_unicode

_TAG = "modcache:"  # no other tuple that the library gets begins with such a text
_DEEPEST = 64
_AS_THEY_ARE = frozenset({*PLAIN_TENSORS, bool, float, complex, type(None), torch.device})
_TOLD_BY_NAME = (torch.dtype, torch.layout, torch.memory_format)
_ONE_TYPE = [{torch.Tensor}, {int}, {float}, {bool}, {str}]


class _RefusedError(Exception):
    """The text names what cannot be shown."""


class Shown(NamedTuple):
    """An input in the form that the library takes."""

    value: Any
    refusal: str  # names a value that the library does not take; "": it takes all
    # Something in it may or may not go row by row, so that no rows can be taken out of it: a list
    # with as many items as there are rows, or a tensor [1, B, ...] beside them.
    runs_whole: bool = False
    # It has a column of texts, of which the library sees the number alone.
    has_unseen_rows: bool = False


def shown(input: Any, row_count: int = WHOLE, longest: int = WHOLE) -> Shown:
    """Returns what the library gets, or the name of a value that it refuses.

    ``row_count``: the number of keys; WHOLE: one key for the whole input. ``longest``: to which the
    rows were padded, if they have lengths of their own.
    """
    if type(input) is torch.Tensor:
        return Shown(input, "")
    value = input
    if type(input) is Arguments:
        if input.joined and row_count != WHOLE:
            return Shown(None, input.joined)
        value = input.shown()
    pictures = _Pictures(value, row_count, longest)
    try:
        picture = pictures.of(value, 0)
    except _RefusedError as refusal:
        return Shown(None, str(refusal))
    is_unclear = row_count != WHOLE and has_unclear_list(input, row_count)
    has_unseen_rows = type(input) is Arguments and input.has_rows()
    return Shown(picture, "", pictures.runs_whole or is_unclear, has_unseen_rows)


def is_taken_as_it_is(input: Any) -> bool:
    """Whether the operator takes ``input`` without a change of meaning to a scripted module."""
    if type(input) is Arguments:  # a tuple to torch, which would lose the names
        return False
    return type(input) is torch.Tensor or (_fits(input) and _infers(input))


class _Pictures:
    """Makes pictures of the values of one input, as the library takes them."""

    def __init__(self, input: Any, row_count: int, longest: int) -> None:
        self._input = input
        self._row_count = row_count
        self._longest = longest
        self.runs_whole = False

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return self._of_tensor(value) if kind in PLAIN_TENSORS else value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else (f"{_TAG}int", hex(value))
        if kind is str:
            return _picture_of_text(value)
        if depth > _DEEPEST:
            raise _RefusedError(f"a value nested more than {_DEEPEST} levels deep")
        if kind is tuple:
            parts = self._of_each(value, depth)
            return value if _is_unchanged(parts, value) else parts
        if kind is list:
            return self._of_list(value, depth)
        if kind is dict:
            return self._of_dict(value, depth)
        return self._of_data(value) or self._of_object(value, depth)

    def _of_object(self, value: Any, depth: int) -> Any:
        try:
            return self._of_other(value, depth)
        except _RefusedError:
            raise
        except Exception as error:  # the value's own code
            name = short_name(type(value))
            raise _RefusedError(f"a {name}, which raised {shown_error(error)}") from None

    def _of_each(self, values: Any, depth: int) -> tuple[Any, ...]:
        return tuple(self.of(part, depth + 1) for part in values)

    def _of_tensor(self, tensor: torch.Tensor) -> Any:
        count = self._row_count
        if not is_of_every_row(tensor, count) or not has_rows(self._input, count):
            return tensor
        if self._longest in tensor.shape[1:]:  # each row has its own part of it
            return tensor.expand(count, *tensor.shape[1:])
        if count in tensor.shape[1:]:
            self.runs_whole = True
        if tensor.requires_grad and torch.is_grad_enabled():
            raise _RefusedError("a tensor for all rows that requires grad")
        try:
            return (f"{_TAG}every row", content_key(tensor))
        except (TypeError, ValueError):  # the library says why it does not take such a tensor
            return tensor

    def _of_list(self, value: list[Any], depth: int) -> Any:
        if len(value) == self._row_count and are_images(value):
            return _view_of(view_of_images, value)
        parts = self._of_each(value, depth)
        if _is_unchanged(parts, value) and (set(map(type, value)) in _ONE_TYPE or _infers(value)):
            return value
        return (f"{_TAG}list", *parts)

    def _of_dict(self, value: dict[Any, Any], depth: int) -> Any:
        items = self._of_items(value, depth)
        given = [part for item in dict.items(value) for part in item]
        if _is_unchanged(items, given) and value and _infers(value):
            return value
        return (f"{_TAG}dict", *items)

    def _of_items(self, value: dict[Any, Any], depth: int) -> tuple[Any, ...]:
        for key in value:
            if isinstance(key, torch.Tensor):
                raise _RefusedError("a dict whose keys are tensors")
        return self._of_each([part for item in value.items() for part in item], depth)

    def _of_data(self, value: Any) -> Any:
        """An array, image or tv_tensor; None: it is none."""
        if is_array(value):
            tensor = tensor_of_array(value)
            if tensor is None:
                raise _RefusedError(f"a NumPy array of dtype {value.dtype}")
            return (f"{_TAG}array", value.dtype.str, self._of_tensor(tensor))
        if is_image(value):
            is_whole = self._row_count == WHOLE
            return _view_of(view_of_image if is_whole else view_of_shared_image, value)
        if is_tv_tensor(value):
            *described, tensor = _view_of(view_of_tv_tensor, value)
            return (*described, self._of_tensor(tensor))
        return None

    def _of_other(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if is_registered(kind):
            return self._of_registered(value, depth)
        if kind is OrderedDict and not attributes_and_slots(value):
            return (f"{_TAG}OrderedDict", *self._of_items(value, depth))
        if kind is torch.Size or _is_named_tuple(value):
            return (f"{_TAG}tuple", _name_of(kind), *self._of_each(tuple(value), depth))
        if is_a(value, UserDict):
            return self._of_user_dict(value, depth)
        if is_a(value, enum.Enum):
            plain = self.of(value.value, depth + 1)
            return (f"{_TAG}enum", _name_of(kind), str(value.name), plain)
        if kind in (range, slice):
            parts = (value.start, value.stop, value.step)
            return (f"{_TAG}{kind.__name__}", *self._of_each(parts, depth))
        return _picture_of_plain(value) or self._of_registered(value, depth)

    def _of_user_dict(self, value: UserDict[Any, Any], depth: int) -> Any:
        items = vars(value).get("data")
        if type(items) is not dict:
            raise _RefusedError(_mapping(value))
        if attributes_and_slots(value).keys() != vars(value).keys():
            raise _RefusedError(f"{_mapping(value)} (it has a slot beside its items)")
        parts = self._of_items(items, depth)
        attributes = attributes_of(value)
        try:
            if tensors_in(list(attributes.values())):
                raise _RefusedError("a tensor")
            own = self._of_items(attributes, depth)
        except _RefusedError as refusal:
            raise _RefusedError(f"{_mapping(value)} (it has {refusal} beside its items)") from None
        return (f"{_TAG}UserDict", _name_of(type(value)), parts, own)

    def _of_registered(self, value: Any, depth: int) -> Any:
        if is_filled_by_runs(type(value)):
            raise _RefusedError(
                f"a {short_name(type(value))}, which a run fills and a hit would not; leave it out "
                "where a call begins with an empty one, since the result has one"
            )
        apart = taken_apart(value)
        if apart is None:
            if is_a(value, Mapping):
                raise _RefusedError(_mapping(value))
            raise _RefusedError(f"a {short_name(type(value))}")
        parts = self._of_each(apart.parts, depth)
        return (f"{_TAG}object", _name_of(apart.kind), apart.context, parts)


def _mapping(value: Any) -> str:
    return f"a {short_name(type(value))}; pass dict(batch) in its place, or call it with **batch"


def _view_of(view: Any, value: Any) -> Any:
    try:
        return view(value)
    except UnviewableError as reason:
        raise _RefusedError(str(reason)) from None
    except Exception as error:  # a file that cannot be decoded, say: the module meets it, too
        kind = short_name(type(value))
        raise _RefusedError(f"a {kind} that cannot be read ({type(error).__name__})") from None


def _is_unchanged(parts: tuple[Any, ...], value: Any) -> bool:
    return all(part is given for part, given in zip(parts, value, strict=True))


def _picture_of_text(value: str) -> Any:
    if not is_unicode(value):
        return (f"{_TAG}surrogates", value.encode("utf-8", "surrogatepass").hex())
    return (f"{_TAG}text", value) if value.startswith(_TAG) else value


def _picture_of_plain(value: Any) -> Any:
    """A value without parts; None: it is none that is known."""
    kind = type(value)
    if is_a(value, _TOLD_BY_NAME):
        return (f"{_TAG}{kind.__name__}", str(value))
    if kind is bytes:
        return (f"{_TAG}bytes", value.hex())
    if value is Ellipsis:
        return (f"{_TAG}...",)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and is_a(value, numpy.generic) and not value.dtype.hasobject:
        return (f"{_TAG}numpy", _name_of(kind), value.dtype.str, value.tobytes().hex())
    return None


def _is_named_tuple(value: Any) -> bool:
    """Whether it holds nothing but its items."""
    kind = type(value)
    return (
        is_a(value, tuple)
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
