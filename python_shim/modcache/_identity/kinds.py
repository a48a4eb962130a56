# SPDX-License-Identifier: Apache-2.0
"""How a walk reads values of the types of Python, NumPy and torch.

The walk reads a value of any other type as an object with attributes, or cannot hash it.
"""

from __future__ import annotations

import array
import enum
import functools
import hashlib
import itertools
import logging
import operator
import re
import sys
import types
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

from modcache._code.names import (
    DESCRIPTORS,
    is_installed,
    is_installed_module,
    is_trusted,
    parts_of_member,
    plain_name,
    trusted_name,
)
from modcache._code.objects import shown_error
from modcache._code.tokens import ATOMS
from modcache._identity.plain import TIMES_AND_DECIMALS, slots_of

if TYPE_CHECKING:
    from modcache._identity.walk import Walk


class UnidentifiedError(Exception):
    """Something cannot be hashed. The text is a clause that names it and gives the reason.

    Its ``__cause__`` is the exception that an object raised while it was read, if one did.
    """


class StoppedError(Exception):
    """A walk stops here, whatever it reads: something is too large, or takes too long."""


def refusal_of(value: object, error: Exception) -> UnidentifiedError:
    """Returns the refusal of a value that raised ``error`` while it was read."""
    try:
        name = plain_name(type(value))
    except Exception:  # a metaclass that raises
        name = "value"
    refusal = UnidentifiedError(f"a {name} raised {shown_error(error)}")
    refusal.__cause__ = error
    return refusal


class Mark:
    """A leaf of structure, which has nothing but a name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Aside:
    """A leaf that counts only where some code may read what it stands for."""

    def tokens_in(self, leaves: list[object]) -> tuple[str | bytes, ...]:
        """Returns what it adds to a digest of ``leaves``, among which it is."""
        raise NotImplementedError


# The flag of a scripted module.
TRAINING, NOT_TRAINING = Mark("training"), Mark("not training")
_ADDRESS = Mark("address")
CALLABLE = Mark("callable")
_CONTAINER = Mark("container")
NAMED = Mark("named")
TENSOR, END = Mark("tensor"), Mark("end")
_BYTES = Mark("bytes")
# Attributes that enum itself sets in a member.
OF_ENUM = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
# Constants that the printed graph of a scripted function shows in full.
_SHOWN = re.compile(r" : (int|float|bool|str|Device|Function|NoneType|(int|float|bool)\[\]) = ")


def _sequence(walk: Walk, value: Any) -> None:
    base = list if isinstance(value, list) else tuple
    _container(walk, value, base.__iter__(value))


def _deque(walk: Walk, value: deque[Any]) -> None:
    walk.value(value.maxlen)
    _container(walk, value, deque.__iter__(value))


def _mapping(walk: Walk, value: Any) -> None:
    base = OrderedDict if isinstance(value, OrderedDict) else dict
    content: list[Any] = []
    items = base.items(value) if walk.lenient is None else _sorted_aliases(base.items(value))
    for key, item in items:
        content += (_ADDRESS if _is_address_of(key, item) else key, item)
    _container(walk, value, content)
    walk.value(getattr(value, "default_factory", None))


def _sorted_aliases(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Sorts names in a row that lead to one object: a package may have them from a set."""
    for _, group in itertools.groupby(items, key=lambda item: id(item[1])):
        aliases = list(group)
        are_names = type(aliases[0][1]) not in ATOMS and all(type(key) is str for key, _ in aliases)
        yield from sorted(aliases, key=operator.itemgetter(0)) if are_names else aliases


def _is_address_of(key: object, item: object) -> bool:
    """Whether a key is the id of its value, which differs in each process and adds nothing."""
    if type(key) is not int:
        return False
    return key == id(item() if isinstance(item, weakref.ref) else item)


def _set(walk: Walk, value: Any) -> None:
    """Sorts the items by type and text: the same order in every process, for plain values."""
    items = sorted(value, key=lambda item: (type(item).__qualname__, walk.text_of(item)))
    _container(walk, value, items)


def _container(walk: Walk, value: Any, content: Iterable[Any]) -> None:
    items = list(content)
    walk.leaves += (_CONTAINER, walk.named(type(value)), len(items))
    for item in items:
        if item is _ADDRESS:
            walk.leaves.append(item)
        else:
            walk.value(item)
    if type(value).__module__ not in ("builtins", "collections") or hasattr(value, "__dict__"):
        walk.attributes(value)


def _enum(walk: Walk, value: enum.Enum) -> None:
    walk.leaves += (NAMED, value.name)
    walk.value(value.value)
    walk.named_class(type(value))
    attributes = {name: part for name, part in vars(value).items() if name not in OF_ENUM}
    if attributes and walk._is_first_visit(value):
        for name in sorted(attributes):
            walk.leaves.append(name)
            walk.value(attributes[name])


def _method(walk: Walk, value: types.MethodType) -> None:
    walk.leaves.append(CALLABLE)
    _read_parts(walk, value, PARTS[types.MethodType])


def _partial(walk: Walk, value: Any) -> None:
    walk.leaves += (CALLABLE, type(value).__name__)
    _read_parts(walk, value, PARTS[functools.partial])
    _derived(walk, value, functools.partial)


def _member(walk: Walk, value: Any) -> None:
    """Reads a property, or another member of a class that is made of functions."""
    walk.leaves += (CALLABLE,) if isinstance(value, property) else (CALLABLE, type(value).__name__)
    _read_parts(walk, value, parts_of_member(value))


def _read_parts(walk: Walk, value: Any, names: tuple[str, ...]) -> None:
    for name in names:
        walk.value(getattr(value, name, None))


def _builtin(walk: Walk, value: Any) -> None:
    walk.leaves += (CALLABLE, plain_name(value))
    owner = getattr(value, "__self__", None)
    if owner is None or (isinstance(owner, types.ModuleType) and is_installed_module(owner)):
        return
    walk.value(owner)


def _descriptor(walk: Walk, value: Any) -> None:
    walk.leaves += (CALLABLE, plain_name(value))
    walk.named_class(value.__objclass__)


def _reduced(walk: Walk, value: Any) -> None:
    """Reads values that their pickled form describes in full."""
    walk.leaves += (CALLABLE, walk.named(type(value)))
    walk.value(value.__reduce__()[1:])
    make = value.__reduce__()[0]
    if isinstance(make, functools.partial):
        walk.value(make)
    if fold := getattr(value, "fold", 0):  # the second of two equal times, which is not pickled
        walk.leaves += ("fold", fold)


def _python_module(walk: Walk, value: types.ModuleType) -> None:
    if not is_installed_module(value):
        raise UnidentifiedError(f"the module {value.__name__} is held as a value")
    walk.leaves += (NAMED, value.__name__)


def _logger(walk: Walk, value: logging.Logger) -> None:
    """Reads a logger by its name: its level and its handlers change no result."""
    walk.leaves += (NAMED, walk.named(type(value)))
    walk.value(value.name)
    if not _is_known_by_name(type(value)):
        walk.named_class(type(value))


def _start_method(walk: Walk, value: BaseContext) -> None:
    """Reads a context of multiprocessing by its class: how processes start changes no result.

    The process's own context is another one after a program or a ``DataLoader`` has chosen a start
    method, and in processes that were spawned.
    """
    walk.leaves += (NAMED, walk.named(type(value)))
    if not _is_known_by_name(type(value)):
        walk.attributes(value)


def _printed(walk: Walk, value: Any) -> None:
    """Reads values that their text describes in full."""
    walk.leaves += (NAMED, walk.named(type(value)), str(value))


def _alias(walk: Walk, value: Any) -> None:
    """Reads a type such as ``list[Own]``: its text, and the user's own classes in it."""
    _printed(walk, value)
    for part in getattr(value, "__args__", ()):
        is_own = isinstance(part, type) and not is_installed(part)
        if is_own or hasattr(part, "__args__"):
            walk.value(part)


def _path(walk: Walk, value: PurePath) -> None:
    walk.leaves += (NAMED, walk.named(type(value)), PurePath.__str__(value))
    _derived(walk, value, PurePath)


def _slice(walk: Walk, value: slice) -> None:
    if all(type(part) in ATOMS for part in (value.start, value.stop, value.step)):
        _printed(walk, value)
        return
    walk.leaves += (NAMED, walk.named(slice))
    _read_parts(walk, value, PARTS[slice])


def _pattern(walk: Walk, value: re.Pattern[Any]) -> None:
    walk.leaves.append(NAMED)
    walk.value(value.pattern)
    walk.leaves.append(int(value.flags))


def _weak(walk: Walk, value: weakref.ref[Any]) -> None:
    walk.value(value())
    _derived(walk, value, weakref.ref)


def _is_known_by_name(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and is_trusted(module)


def _derived(walk: Walk, value: Any, base: type) -> None:
    """Reads what a class of the user's or of a package adds to ``base``, which it is from."""
    kind = type(value)
    if _is_known_by_name(kind):
        return
    walk.named_class(kind)
    of_base = {*slots_of(base), "__dict__"}
    added = {name for name in slots_of(kind) if name not in of_base and hasattr(value, name)}
    for name in sorted({*getattr(value, "__dict__", ()), *added}):
        walk.leaves.append(name)
        walk.value(getattr(value, name))


def _buffer(walk: Walk, value: Any) -> None:
    walk.leaves += (_BYTES, walk.named(type(value)), getattr(value, "typecode", "B"))
    walk.leaves.append(hashlib.blake2b(value, digest_size=16).digest())
    _derived(walk, value, bytearray)


def _script_function(walk: Walk, value: Any) -> None:
    text = str(value.inlined_graph.str(False))
    constants = [line for line in text.split("\n") if "prim::Constant[" in line]
    if "prim::Call" in text or "prim::Python" in text or not all(map(_SHOWN.search, constants)):
        raise UnidentifiedError("the scripted function holds constants or calls not seen in full")
    walk.leaves += (CALLABLE, text)


def array_way(walk: Walk, value: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
        raise UnidentifiedError(f"a {plain_name(type(value))} may hold more than its elements")
    array = numpy.asarray(value)
    walk.leaves += (_BYTES, walk.named(type(value)))
    walk.leaves += (array.dtype.str, str(array.dtype), str(array.shape))
    if array.dtype.hasobject:
        walk.value(array.ravel().tolist())
    else:
        walk.leaves.append(hashlib.blake2b(array.tobytes(), digest_size=16).digest())


def _ufunc(walk: Walk, value: Any) -> None:
    name = value.__name__
    if vars(sys.modules["numpy"]).get(name) is not value:
        raise UnidentifiedError(f"{name} is no function of numpy itself")
    walk.leaves += (NAMED, walk.named(type(value)), name)


def _by_name(walk: Walk, value: Any) -> None:
    name = trusted_name(value)
    if not name:
        raise UnidentifiedError(f"a {plain_name(type(value))} holds state that Python cannot see")
    walk.leaves += (NAMED, name)


_AUTOCAST = torch.amp.autocast_mode.autocast
# Kinds that a few attributes describe in full, and these attributes. An autocast object is
# described by what it was made with: its other attributes are written whenever its block is
# entered.
PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords", "__dict__"),
    slice: ("start", "stop", "step"),
    _AUTOCAST: ("device", "fast_dtype", "_enabled", "_cache_enabled"),
}


def _autocast(walk: Walk, value: Any) -> None:
    walk.leaves += (NAMED, walk.named(type(value)))
    _read_parts(walk, value, PARTS[_AUTOCAST])


_Way = Callable[["Walk", Any], None]


def way_of_kind(kind: type) -> _Way | None:
    """Finds the function that reads values of exactly this type; None if there is none here."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
        return array_way
    if numpy is not None and issubclass(kind, numpy.ufunc):
        return _ufunc
    if numpy is not None and issubclass(kind, numpy.dtype):
        return _printed
    if kind.__name__ == "_ArrayFunctionDispatcher" and kind.__module__ == "numpy":
        return _by_name
    if kind.__module__ == "typing":
        return _alias
    if kind in TIMES_AND_DECIMALS:
        return _reduced
    return next((way for bases, way in _WAYS if issubclass(kind, bases)), None)


_WAYS: tuple[tuple[Any, _Way], ...] = (
    (torch.jit.ScriptFunction, _script_function),
    (enum.Enum, _enum),
    ((list, tuple), _sequence),
    (deque, _deque),
    (dict, _mapping),
    ((set, frozenset), _set),
    (types.MethodType, _method),
    ((functools.partial, functools.partialmethod), _partial),
    ((staticmethod, classmethod, property), _member),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _builtin),
    (DESCRIPTORS, _descriptor),
    (
        (
            operator.itemgetter, operator.attrgetter, operator.methodcaller,
            type(namedtuple("_Pair", "one")("").__class__.__dict__["one"]),
        ),
        _reduced,
    ),
    (weakref.ref, _weak),
    (_AUTOCAST, _autocast),
    (types.ModuleType, _python_module),
    (logging.Logger, _logger),
    (BaseContext, _start_method),
    (PurePath, _path),
    (slice, _slice),
    ((types.GenericAlias, types.UnionType), _alias),
    (re.Pattern, _pattern),
    ((bytearray, array.array), _buffer),
    (types.MappingProxyType, lambda walk, value: walk.value(dict(value))),
)  # fmt: skip
