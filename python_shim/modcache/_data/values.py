# SPDX-License-Identifier: Apache-2.0
"""Samples of datasets on their way into the library and back.

A sample goes as a tagged value (``_call/tagged.py``), images inside carriers. Arrays and bytes go
as tensors inside named tuples of this file, which describe them. Nothing is pickled.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from modcache._call.carriers import bytes_of, carrier_of, is_array, tensor_of_bytes
from modcache._call.registered import is_registered, taken_apart
from modcache._call.tagged import tagged, untagged
from modcache._code.names import plain_name, short_name

_PLAIN = (type(None), bool, float, complex)
_VALID = (
    "A sample may hold tensors, NumPy arrays, PIL images, numbers, text, bytes, None, lists, "
    "tuples and dicts of them, and values of classes that modcache.register_value names."
)


# The names of these classes and of their fields are on disk.
class Bytes(NamedTuple):
    """A ``bytes`` object: uint8 [size]."""

    data: torch.Tensor


class Array(NamedTuple):
    """A NumPy array or scalar.

    ``data`` has the array's numbers and shape where torch has its dtype; otherwise its bytes, and
    ``shape`` the array's shape as text: "2,3".
    """

    dtype: str
    shape: str | None
    is_scalar: bool
    data: torch.Tensor


def packed(sample: Any) -> Any:
    """Returns the sample as a tagged value, which shares no memory with the sample.

    Raises:
        TypeError: something in it cannot be stored; the text names it, its place and the cure.
    """
    try:
        return tagged(_with_tensors(sample, "sample"))
    except RecursionError:
        cure = "Return what is needed of it in fewer levels."
        raise _refusal("sample", "nested too deeply, or holds itself", cure) from None


def unpacked(value: Any) -> Any:
    """Inverts ``packed``. The caller may write into the result.

    Raises:
        UnknownClassError: this process lacks a class in it, or cannot rebuild a value.
    """
    return untagged(value, _RESTORED)


def _with_tensors(value: Any, place: str) -> Any:
    """Returns the value with its arrays and bytes as tensors."""
    kind = type(value)
    if kind is torch.Tensor:
        return _checked_tensor(value, place)
    if kind in _PLAIN or kind is int or kind is str:
        return _checked_plain(value, place)
    if kind is bytes:
        return Bytes(tensor_of_bytes(value))
    if kind is list or kind is tuple:
        return kind([_with_tensors(item, f"{place}[{i}]") for i, item in enumerate(value)])
    if kind is dict:
        return {
            _checked_key(key, place): _with_tensors(item, f"{place}[{_quoted(key)}]")
            for key, item in value.items()
        }
    if isinstance(value, tuple) and pytree.is_namedtuple_class(kind) and not is_registered(kind):
        return _named_tuple(value, place)
    numpy: Any = sys.modules.get("numpy")
    if is_array(value) or (numpy is not None and isinstance(value, numpy.generic)):
        return _packed_array(value, place)
    if (carrier := carrier_of(value)) is not None:
        is_own = not isinstance(value, torch.Tensor)  # the bytes of an image are a copy
        data = carrier[-1] if is_own else _checked_tensor(carrier[-1], place)
        return type(carrier)._make((*carrier[:-1], data))
    return _checked_object(value, place)


def _quoted(key: Any) -> str:
    return f'"{key}"' if type(key) is str else repr(key)


def _refusal(place: str, what: str, cure: str) -> TypeError:
    return TypeError(f"{place} is {what}, which cannot be cached. {_VALID} {cure}")


def _checked_tensor(tensor: torch.Tensor, place: str) -> torch.Tensor:
    if tensor.requires_grad:
        raise _refusal(place, "a tensor that requires grad", "Return tensor.detach().")
    if tensor.device.type != "cpu":
        cure = "Return it on the CPU (tensor.cpu()), and move batches to the device."
        raise _refusal(place, f"a tensor on {tensor.device}", cure)
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise _refusal(place, f"a tensor of layout {layout}", "Return tensor.to_dense().")
    if tensor.is_quantized:
        raise _refusal(place, "a quantized tensor", "Return tensor.dequantize().")
    # A copy, since datasets may fill one buffer again and again; and no inference tensor, like
    # hits.
    with torch.inference_mode(False):
        copy = tensor.clone(memory_format=torch.preserve_format)
    return copy.resolve_conj().resolve_neg()


def _checked_plain(value: Any, place: str) -> Any:
    shown = tagged(value)
    if type(shown) is tuple:  # a refusal
        raise _refusal(place, shown[1], "Return it as bytes.")
    return value


def _checked_key(key: Any, place: str) -> Any:
    if tagged({key: None})[0] == "{":
        return key
    cure = "Use keys of type str or int."
    raise _refusal(place, f"a dict with the key {key!r} of type {plain_name(type(key))}", cure)


def _named_tuple(value: Any, place: str) -> Any:
    kind = type(value)
    if getattr(value, "__dict__", None):
        cure = "Make them fields of it, or return them beside it."
        raise _refusal(place, f"a {plain_name(kind)} with attributes beside its fields", cure)
    items = zip(kind._fields, value, strict=True)
    rebuilt = kind._make([_with_tensors(item, f"{place}.{name}") for name, item in items])
    if tagged(rebuilt)[0] != "?":
        return rebuilt
    cure = "Define the class at the top of its module, where it can be found by name."
    raise _refusal(place, f"a named tuple of the class {plain_name(kind)}", cure)


def _checked_object(value: Any, place: str) -> Any:
    """Checks an object of a registered class, such as an OrderedDict, and takes it apart."""
    kind = type(value)
    apart = taken_apart(value)
    if apart is not None:
        inside = [_with_tensors(part, f"{place}[{i}]") for i, part in enumerate(apart.parts)]
        apart = apart._replace(parts=inside)
        if tagged(apart)[0] != "?":
            return apart
    raise _refusal(place, f"a {short_name(kind)}", _cure_for(kind))


def _cure_for(kind: type) -> str:
    names = {base.__module__.split(".", 1)[0] for base in kind.__mro__}
    if "PIL" in names:
        return (
            "Return numpy.asarray(image) in its place, or the current one of several frames: "
            "image.copy()."
        )
    if "numpy" in names:
        return "Return numpy.array(value) in its place."
    if issubclass(kind, torch.Tensor):
        return "Return tensor.as_subclass(torch.Tensor) in its place."
    return (
        "Convert it in the dataset, return what is needed of it as plain values, or register its "
        "class."
    )


def _packed_array(value: Any, place: str) -> Array:
    numpy: Any = sys.modules["numpy"]
    is_scalar = isinstance(value, numpy.generic)
    array = numpy.array(value, order="C", copy=True, subok=False)
    dtype = array.dtype
    text = _text_of_dtype(dtype)
    if text is None:
        what = f"a NumPy {'scalar' if is_scalar else 'array'} of dtype {dtype}"
        raise _refusal(place, what, "Return its elements as plain values or numbers.")
    if dtype.isnative and dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.char not in "gG":
        return Array(text, None, is_scalar, torch.from_numpy(array))
    shape = ",".join(map(str, array.shape))
    return Array(text, shape, is_scalar, tensor_of_bytes(array.tobytes()))


def _text_of_dtype(dtype: Any) -> str | None:
    """Returns text from which the same dtype can be made again; None if there is none."""
    if dtype.hasobject:
        return None
    numpy: Any = sys.modules["numpy"]
    try:
        text = repr(numpy.lib.format.dtype_to_descr(dtype))
        return text if _dtype_of(text) == dtype else None
    except Exception:  # a dtype of some package may raise anything
        return None


@functools.lru_cache(maxsize=256)
def _dtype_of(text: str) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.lib.format.descr_to_dtype(ast.literal_eval(text))


def _array_of(dtype: str, shape: str | None, is_scalar: bool, data: torch.Tensor) -> Any:
    import numpy

    array = data.numpy()
    if shape is not None:
        sizes = tuple(map(int, shape.split(","))) if shape else ()
        kind = _dtype_of(dtype)
        if kind.hasobject:  # NumPy would take its bytes for addresses
            raise ValueError(f"dtype {kind}")
        array = numpy.ndarray(sizes, kind, array.tobytes()).copy()
    return array[()] if is_scalar else array


# Functions that restore packed values, by the names of the classes on disk.
_RESTORED: dict[str, Callable[..., Any]] = {
    plain_name(Bytes): bytes_of,
    plain_name(Array): _array_of,
}
