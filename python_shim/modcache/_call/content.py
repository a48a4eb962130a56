# SPDX-License-Identifier: Apache-2.0
"""Content keys. This module takes an input apart, and the library hashes the parts.

TorchScript has no type for a list of different things, so torch's matcher takes no such lists and
dicts. The library gets their structure as text, and the leaves as a flat list.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from modcache._call.carriers import (
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
from modcache._call.parts import WHOLE, count_of_rows, is_of_every_row, is_subclass
from modcache._call.registered import is_registered, taken_apart
from modcache._code.names import plain_name, short_name
from modcache._library.text import checked_text

# Checked here, since such a tensor does not get as far as the library's own checks.
_is_functorch_wrapper = torch._C._functorch.is_functorch_wrapped_tensor
_AS_THEY_ARE = frozenset({type(None), bool, float, complex, torch.device})
_OTHER = "<"  # the tag of another class's value: no tuple of the same parts has its key
# The operator as torch calls it in the end: the way there costs a tenth of a key.
_content_keys: Any = torch.ops.cache._content_keys.default._op
_DEEPEST = 64
_CURE = "give a key of your own, such as the sample's id or file name"


def content_key(input: Any) -> str:
    """A key made from what a sample is, for callers that have no id for it.

    The same input has the same key on every machine, in Python, TorchScript and C++. The hash is
    cryptographic (256 bits of BLAKE2b): nobody finds two inputs with one key, so the input may
    come from a stranger.

    Args:
        input: a Tensor of any shape, or tuples, lists and dicts of tensors, NumPy arrays and
            plain values (None, bool, int, float, complex, str, torch.device), PIL images. All
            of it counts: structure, order of dicts, dtypes, shapes and bytes, so ``1``, ``1.0`` and
            ``True`` differ, as do ``0.0`` and ``-0.0``. Strides, devices of tensors and
            requires_grad do not count, nor do names in named tuples. A NumPy array counts as the
            tensor of its elements, any mapping (UserDict, BatchEncoding) as the dict of its items,
            a value of a class that ``register_value`` names as that name and its parts, and an
            outermost tuple of one item as that item.

    Returns:
        64 hexadecimal digits.

    >>> import modcache, torch
    >>> modcache.content_key(torch.ones(2)) == modcache.content_key(torch.ones(2, 1)[:, 0])
    True

    Raises:
        TypeError: a value of another type, such as bytes, a NumPy scalar or a tensor subclass; a
            tensor inside a functorch transform.
        ValueError: a tensor without plain bytes (sparse, quantized, nested, meta); an int of more
            than 64 bits; text with lone surrogates; an image of several frames.

    Inside ``torch.jit.script`` a call of this function compiles into the operator
    ``cache::content_key``.
    """
    # A compiler breaks its graph at the second way, and would take the operator into the graph.
    if type(input) is torch.Tensor and not torch.compiler.is_compiling():
        return torch.ops.cache.content_key(_checked_tensor(input))  # type: ignore[no-any-return]
    return _content_keys(*_take_apart(input), False)[0]  # type: ignore[no-any-return]


def content_keys(input: Any) -> list[str]:
    """One content key per row of a batch.

    ``content_keys(x)[i] == content_key(x[i])``; for a structured input, the key of the input with
    each tensor replaced by its row ``i``.

    Args:
        input: as for ``content_key``. The first dimension of every tensor and array is the number
            of rows, and so is the length of a list of images; other values belong to every row, and
            so do tensors and arrays of the first size 1 beside those that have more.

    Returns:
        One key of 64 hexadecimal digits per row; an empty list for an empty batch.

    >>> import modcache, torch
    >>> batch = torch.randn(3, 2)
    >>> modcache.content_keys(batch)[1] == modcache.content_key(batch[1])
    True

    Raises:
        TypeError, ValueError: as ``content_key``.
        ValueError: no tensor, one of 0 dimensions, or tensors of different numbers of rows.

    Inside ``torch.jit.script`` a call of this function compiles into the operator
    ``cache::content_keys``.
    """
    if type(input) is torch.Tensor and not torch.compiler.is_compiling():
        return torch.ops.cache.content_keys(_checked_tensor(input))  # type: ignore[no-any-return]
    return _content_keys(*_take_apart(input, has_rows=True), True)  # type: ignore[no-any-return]


def _take_apart(value: Any, *, has_rows: bool = False) -> tuple[str, list[Any]]:
    """Returns the structure and the leaves: TakenApart in csrc/tensor/content_key.h."""
    structure: list[str] = []
    leaves: list[Any] = []
    _append(value, structure, leaves, has_rows)
    count = count_of_rows(value) if has_rows else WHOLE
    if count > 1:
        leaves = [_with_rows(leaf, count) for leaf in leaves]
    return "".join(structure), leaves


def _append(
    value: Any, structure: list[str], leaves: list[Any], has_rows: bool, depth: int = 0
) -> None:
    if depth > _DEEPEST:
        raise TypeError(
            f"the input is nested more than {_DEEPEST} levels deep, or holds itself. Pass a "
            f"flatter one, or {_CURE}."
        )
    tag = "("
    if isinstance(value, list) and has_rows and are_images(value):
        tag, value = _OTHER, view_of_images(value)
    elif is_image(value):
        tag, value = _OTHER, view_of_shared_image(value) if has_rows else view_of_image(value)
    elif is_tv_tensor(value):
        tag, value = _OTHER, view_of_tv_tensor(value)
    elif is_registered(type(value)) and (apart := taken_apart(value)) is not None:
        name = plain_name(apart.kind)
        tag, value = _OTHER, ("modcache:object", name, apart.context, *apart.parts)
    if isinstance(value, tuple):
        parts = list(value)
    elif isinstance(value, list):
        tag, parts = "[", value
    elif isinstance(value, Mapping):
        tag, parts = "{", [part for item in value.items() for part in item]
    else:
        structure.append(".")
        leaves.append(_leaf(value))
        return
    count = len(parts) // 2 if tag == "{" else len(parts)
    structure.append(f"{tag}{count};")
    for part in parts:
        _append(part, structure, leaves, has_rows, depth + 1)


def _with_rows(leaf: Any, count: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested or leaf.layout is not torch.strided:
        return leaf  # the library refuses others than strided ones
    return leaf.expand(count, *leaf.shape[1:]) if is_of_every_row(leaf, count) else leaf


def _leaf(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, torch.Tensor):
        return _checked_tensor(value)
    if kind is int:
        if -(2**63) <= value < 2**63:
            return value
        raise ValueError(
            f"the input holds an int of {value.bit_length()} bits, and 64 with the sign are the "
            f"limit, as in TorchScript. Pass it as text, or {_CURE}."
        )
    if kind is str:
        return checked_text(value, "text in the input", '"left"')
    if is_array(value):
        return _tensor_of(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        raise _no_key(value, "Pass a Python number (value.item()), or an array (np.asarray).")
    raise _no_key(value, f"Pass tensors, arrays, numbers or text instead, or {_CURE}.")


def _checked_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if is_subclass(tensor):
        raise _no_key(tensor, f"Pass the plain tensors that it is made of, or {_CURE}.")
    if _is_functorch_wrapper(tensor):
        raise TypeError(
            "the input holds a tensor inside a functorch transform (vmap, grad, functionalize), "
            f"which has no content key. Make the key outside of it, or {_CURE}."
        )
    return tensor


def _no_key(value: object, cure: str) -> TypeError:
    name = short_name(type(value))
    return TypeError(f"the input holds a value of type {name}, which has no content key. {cure}")


def _tensor_of(array: Any) -> torch.Tensor:
    tensor = tensor_of_array(array)
    if tensor is None:
        raise TypeError(
            f"the input holds a NumPy array of dtype {array.dtype}, which no tensor has, so it has "
            f"no content key. Convert it (astype), or {_CURE}."
        )
    return tensor
