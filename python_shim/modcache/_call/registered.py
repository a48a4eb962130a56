# SPDX-License-Identifier: Apache-2.0
"""Classes of values that are made of parts: how they are taken apart and put together again.

torch's pytree registry knows many of them. Beside it stand those that ``register_value`` names,
UserDict with its subclasses (Hugging Face's BatchEncoding and BatchFeature), and classes of
installed libraries, which are known by name, so that nothing is imported.
"""

from __future__ import annotations

import contextlib
import json
import sys
import types
import weakref
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from modcache._call.carriers import is_carried
from modcache._code.names import plain_name
from modcache._code.objects import is_a
from modcache._code.tokens import ATOMS
from modcache._identity.digest import digest_of
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.plain import plain_values_in
from modcache._identity.records import Records
from modcache._identity.walk import walk_over


class TakenApart(NamedTuple):
    """The parts of a value, its class, and as JSON whatever else is needed to rebuild it."""

    kind: type
    context: str
    parts: list[Any]


_registered: dict[type, Node] = {}
# Registered classes whose functions were hashed, with the hash of these.
_digests: dict[type, tuple[Node, str]] = {}
_ENCODINGS = "_encodings"
_BUILT_IN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)


def register_value(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten: Callable[[list[Any], Any], Any],
) -> None:
    """Says what values of a class are made of, so that they are cached as results and samples.

    Such values may also be arguments of cached calls. Classes in torch's pytree registry
    (``torch.utils._pytree.register_pytree_node``) need no registration here. Register a class
    where it is defined, in every process that is to read its values. Where it is not registered,
    or with functions of other code, the module is run in place of a stored value, with a warning;
    ``modcache.mode("refresh")`` replaces what others stored.

    >>> import modcache, torch
    >>> class Normal:
    ...     def __init__(self, mean, std, name):
    ...         self.mean, self.std, self.name = mean, std, name
    >>> modcache.register_value(
    ...     Normal,
    ...     lambda value: ([value.mean, value.std], {"name": value.name}),
    ...     lambda children, context: Normal(*children, context["name"]),
    ... )

    Args:
        cls: the class itself; its subclasses need a registration of their own.
        flatten: takes a value and returns its children, and a context. Children are tensors and
            all else that a result may hold, nested too; with one key per row, each tensor among
            them has the first dimension B. The context is made of None, bool, int, float, str,
            lists and dicts with keys of text, and comes back equal.
        unflatten: takes the children, in a list, and the context, and returns an equal value of
            this very class.

    Raises:
        TypeError: ``cls`` is no class, or one that needs no registration (a tensor, number, text,
            list, tuple, dict, array or image); ``flatten`` or ``unflatten`` cannot be called.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_value: cls must be a class, but got {type(cls).__name__}.")
    if cls in _BUILT_IN or issubclass(cls, torch.Tensor) or is_carried(cls):
        raise TypeError(
            f"register_value: {cls.__qualname__} cannot be registered: tensors, their subclasses, "
            "NumPy arrays and scalars, PIL images and Python's plain values go their own way. "
            "Register the class that holds them."
        )
    for name, function in (("flatten", flatten), ("unflatten", unflatten)):
        if not callable(function):
            raise TypeError(
                f"register_value: {name} must be a function, but got {type(function).__name__}."
            )
    _registered.pop(cls, None)
    _registered[cls] = Node(flatten, unflatten)


def node_of(kind: type) -> Node | None:
    """Returns how values of a class are taken apart; None: nobody said so."""
    node = _named_node(kind)
    if node is not None:
        return node
    if issubclass(kind, UserDict):
        return Node(_parts_of_user_dict, _UserDictOf(kind))
    if kind is torch.Size:  # the registry would make a plain tuple
        return Node(lambda size: (list(size), None), lambda items, _: torch.Size(items))
    known = pytree.SUPPORTED_NODES.get(kind)
    return None if known is None else Node(known.flatten_fn, known.unflatten_fn)


def registered_class(name: str) -> type | None:
    """Returns the class that was registered last under a name, as ``plain_name`` gives it."""
    return next((kind for kind in list(_registered)[::-1] if plain_name(kind) == name), None)


def is_registered(kind: type) -> bool:
    """Whether ``register_value`` named the class."""
    return kind in _registered


def taken_apart(value: Any) -> TakenApart | None:
    """Takes a value of a known class apart; None: it would not come back as it is.

    Whoever calls ``register_value`` says what counts in a value. Others may register a class for
    another purpose, and leave something out: such values are not taken apart.
    """
    kind = type(value)
    node = node_of(kind)
    if node is None:
        return None
    try:
        parts, context = node.flatten(value)
        parts = list(parts)
        text = json.dumps(context)
        # JSON changes some values (tuples, keys that are no text), and the registry may rebuild
        # another class: such values would come back wrong.
        if json.loads(text) != context:
            return None
        made = node.unflatten(list(parts), json.loads(text))
        if type(made) is not kind:
            return None
        if _named_node(kind) is None and not holds_same(made, value, _not_rebuilt(value)):
            return None
    except Exception:  # the class's own code may raise anything, and the call must not fail
        return None
    return TakenApart(kind, text, parts)


def rebuilt(kind: type, parts: list[Any], context: str) -> Any:
    """Inverts ``taken_apart``. Raises LookupError if nobody said how, or what the class raises."""
    node = node_of(kind)
    if node is None:
        raise LookupError(kind)
    return node.unflatten(parts, json.loads(context))


def stored_context(value: TakenApart) -> str:
    """Returns the context as it is stored: with a digest of the functions of ``register_value``.

    A value that other functions took apart would be put together wrongly.
    """
    digest = _digest_of_functions(value.kind)
    return f"{digest} {value.context}" if digest else value.context


def given_context(kind: type, stored: str) -> str:
    """Inverts ``stored_context``. Raises LookupError if other functions took the value apart."""
    digest = _digest_of_functions(kind)
    if digest and not stored.startswith(f"{digest} "):
        raise LookupError(
            f"register_value had other functions for {plain_name(kind)} then; "
            'modcache.mode("refresh") replaces it'
        )
    return stored.removeprefix(f"{digest} ")


def _digest_of_functions(kind: type) -> str:
    """Hashes what ``register_value`` was given for a class; "": nothing, or it has no hash."""
    node = _registered.get(kind)
    if node is None:
        return ""
    known = _digests.get(kind)
    if known is None or known[0] is not node:
        digest = ""
        with contextlib.suppress(UnidentifiedError):
            digest = digest_of(walk_over(tuple(node), Records()).leaves)
        known = _digests[kind] = (node, digest)
    return known[1]


def parts_of(value: Any) -> Iterable[Any] | None:
    """Returns what a container holds, whatever its class; None: it is none, or unknown."""
    kind = type(value)
    if kind in (tuple, list):
        return value  # type: ignore[no-any-return]
    if issubclass(kind, (tuple, list)):  # its own __iter__ may do anything
        return list(tuple.__iter__(value) if issubclass(kind, tuple) else list.__iter__(value))
    if issubclass(kind, dict):
        return dict.values(value)
    if is_a(value, UserDict):
        items = vars(value).get("data")
        return list(items.values()) if is_a(items, dict) else ()
    node = _named_node(type(value))
    if node is None:
        return None
    try:
        return list(node.flatten(value)[0])
    except Exception:  # the class's own code; the value is refused where it is stored
        return None


def attributes_of(value: UserDict[Any, Any]) -> dict[str, Any]:
    """Returns what a UserDict has beside its items, and None for a tokenizer's own objects.

    Nothing can rebuild these, and the items came from them.
    """
    parts = {name: part for name, part in vars(value).items() if name != "data"}
    return {**parts, _ENCODINGS: None} if encodings_of(value) else parts


def encodings_of(value: Any) -> list[Any]:
    """Returns a fast tokenizer's own objects in its BatchEncoding, one for each row."""
    if not is_a(value, UserDict) or is_registered(type(value)):
        return []
    found = vars(value).get(_ENCODINGS)
    return found if type(found) is list and all(map(_is_of_tokenizers, found)) else []


def _not_rebuilt(value: Any) -> frozenset[str]:
    """Returns the attribute of a BatchEncoding that is known to be lost, and its items.

    Its parts are those of another dict with the same items.
    """
    if not is_a(value, UserDict):
        return frozenset()
    return frozenset({"data", _ENCODINGS} if encodings_of(value) else {"data"})


def _is_of_tokenizers(part: object) -> bool:
    return str(type(part).__module__).partition(".")[0] == "tokenizers"


def with_encodings(value: UserDict[Any, Any], encodings: list[Any] | None) -> UserDict[Any, Any]:
    """Returns a copy with other objects of a tokenizer."""
    return with_attribute(value, _ENCODINGS, encodings)


def with_attribute(value: UserDict[Any, Any], name: str, part: Any) -> UserDict[Any, Any]:
    """Returns a copy with another attribute, made as ``copy.copy`` makes it. "data": its items."""
    made: UserDict[Any, Any] = object.__new__(type(value))
    vars(made).update({**vars(value), name: part})
    return made


def _named_node(kind: type) -> Node | None:
    return _registered[kind] if kind in _registered else node_by_name(kind)


def _parts_of_user_dict(value: UserDict[Any, Any]) -> tuple[list[Any], Any]:
    items = vars(value)["data"]
    if type(items) is not dict:
        raise TypeError("its items are in no dict")
    attributes = [[name, part] for name, part in attributes_of(value).items()]
    return list(items.values()), [list(items), attributes]


class _UserDictOf:
    """Makes objects of one subclass of UserDict."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __call__(self, parts: list[Any], context: Any) -> Any:
        names, attributes = context
        made: Any = object.__new__(self._kind)
        vars(made)["data"] = dict(zip(names, parts, strict=True))
        vars(made).update(attributes)
        return made


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


class Node(NamedTuple):
    """How values of one class are taken apart, and put together again."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[list[Any], Any], Any]


def node_by_name(kind: type) -> Node | None:
    """Returns how values of a class are taken apart; None: its name is not known."""
    if str(kind.__module__).partition(".")[0] not in _LIBRARIES:
        return None
    known = _BY_NAME.get(plain_name(kind))
    return None if known is None else known(kind)


def is_filled_by_runs(kind: type) -> bool:
    """Whether a run writes into arguments of this class, which a hit would not."""
    return plain_name(kind) in _FILLED_BY_RUNS


def _check_same(made: Any, value: Any, but: tuple[str, ...] = ()) -> None:
    """Raises ValueError if two objects differ in an attribute that is not named in ``but``."""
    ours, theirs = vars(made), vars(value)
    names = ours.keys() - set(but)
    if ours.keys() != theirs.keys() or not all(is_same(ours[n], theirs[n]) for n in names):
        raise ValueError(f"a {plain_name(type(value))} with something of its own")


# ----- diffusers: distributions, which compute all that they have from their parameters


def _distribution(kind: Any) -> Node:
    def parts_of(value: Any) -> tuple[list[Any], Any]:
        flags = {"deterministic": True} if getattr(value, "deterministic", False) else {}
        _check_same(kind(value.parameters, **flags), value)
        return [value.parameters], flags

    return Node(parts_of, lambda parts, flags: kind(*parts, **flags))


# ----- transformers: caches of keys and values, as results


def _dynamic_cache(kind: Any) -> Node:
    layer_kind: Any = getattr(sys.modules.get(kind.__module__), "DynamicLayer", None)

    def made_of(parts: list[Any], grows: bool) -> Any:
        made = kind()
        made.layers = []
        for keys, values in zip(parts[::2], parts[1::2], strict=True):
            layer = layer_kind()
            if keys is not None:
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            made.layers.append(layer)
        made.layer_class_to_replicate = layer_kind if grows else None
        return made

    def parts_of(cache: Any) -> tuple[list[Any], Any]:
        parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        grows = cache.layer_class_to_replicate is layer_kind
        made = made_of(parts, grows)
        _check_same(made, cache, ("layers",))
        for layer, other in zip(made.layers, cache.layers, strict=True):
            if type(other) is not layer_kind:
                raise ValueError("a layer of another class")
            _check_same(layer, other, ("keys", "values"))
        return parts, grows

    return Node(parts_of, made_of)


def _encoder_decoder_cache(kind: Any) -> Node:
    def made_of(parts: list[Any], updated: list[Any]) -> Any:
        made = kind(*parts)
        made.is_updated = dict(updated)
        return made

    def parts_of(cache: Any) -> tuple[list[Any], Any]:
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
        updated = [[layer, flag] for layer, flag in cache.is_updated.items()]
        _check_same(
            made_of(parts, updated), cache, ("self_attention_cache", "cross_attention_cache")
        )
        return parts, updated

    return Node(parts_of, made_of)


_FILLED_BY_RUNS: dict[str, Callable[[Any], Node]] = {
    "transformers.cache_utils.DynamicCache": _dynamic_cache,
    "transformers.cache_utils.EncoderDecoderCache": _encoder_decoder_cache,
}
_BY_NAME: dict[str, Callable[[Any], Node]] = {
    "diffusers.models.autoencoders.vae.DiagonalGaussianDistribution": _distribution,
    "diffusers.models.autoencoders.vae.IdentityDistribution": _distribution,
    "diffusers.models.autoencoders.autoencoder_oobleck.OobleckDiagonalGaussianDistribution": (
        _distribution
    ),
    **_FILLED_BY_RUNS,
}
_LIBRARIES = frozenset(name.partition(".")[0] for name in _BY_NAME)
