# SPDX-License-Identifier: Apache-2.0
"""Makes the input and the key of one lookup from a loader's batch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from modcache._cached.call_key import CallKey, content_function
from modcache._cached.function import cache_of, call_key_of, found_cached, holder_of, name_of
from modcache._call.keys import checked_keys, key_of_one_id
from modcache._call.parts import data_in
from modcache._code.wrapped import unwrapped
from modcache._identity.wrappers import identified_as


class Target(NamedTuple):
    """What a fill runs: a module to look up with, and its way to make keys, if it has one."""

    module: torch.nn.Module
    scope: str
    own_key: CallKey | None
    owner: Any  # the object of a cached method
    method: str = "forward"  # "": the module only holds a function
    rows: Mapping[str, Any] = MappingProxyType({})  # see ``Way.rows``
    cache: Any = None  # see ``cache_of``


def target_of(given: Any) -> Target:
    """Raises TypeError for anything but modules and functions."""
    if isinstance(given, torch.nn.Module):
        inner = identified_as(given)
        found = found_cached(getattr(type(inner), "forward", None))
        cache = cache_of(inner, found)
        if found is None:
            _check_forward_is_meant(type(inner))
            return Target(given, "", None, None, cache=cache)
        return Target(given, found.scope, found.key, inner, rows=found.rows, cache=cache)
    function = getattr(given, "__func__", given)
    found = found_cached(function)
    if found is not None:
        owner = getattr(given, "__self__", None)
        module, method = found.looked_up_as(owner)
        key, cache = call_key_of(found, owner), cache_of(owner, found)
        return Target(module, found.scope, key, owner, method, found.rows, cache)
    if callable(given) and hasattr(given, "__qualname__") and not isinstance(given, type):
        return Target(holder_of(given, name_of(unwrapped(given))), "", None, None, "")
    kind = given.__name__ if isinstance(given, type) else type(given).__name__
    raise TypeError(
        f"fill: module must be a module or a function, cached or plain, but got {kind}."
    )


def _check_forward_is_meant(cls: type) -> None:
    """Refuses a module that ``cached(..., methods=...)`` made without a cached ``forward``."""
    methods = getattr(getattr(cls, "_modcache_way", None), "methods", ())
    if methods:
        name = cls.__qualname__
        raise TypeError(
            f"fill: of this {name}, {', '.join(methods)} is cached and not forward; pass the "
            f"method: modcache.fill(module.{methods[0]}, ...)."
        )


class BatchReader:
    """Takes batches apart.

    Args:
        target: what is filled.
        key: as for ``modcache.fill``; None: the target's own.
        input: as for ``modcache.fill``; None: the rule in its documentation.

    Raises:
        TypeError: there is no key.
    """

    def __init__(self, target: Target, key: Any, input: Any) -> None:
        self._target = target
        self._key = key
        self._input = input
        own = target.own_key
        if key is None and (own is None or own.is_from_block):
            raise TypeError(
                "fill needs key=...: a function of the batch, the place or name of an item in it "
                '(key=1, key="id"), or "content". Only what modcache.cached made with a key '
                "has its own."
            )
        if key is None and input is not None and target.own_key and target.own_key.is_consumed:
            raise TypeError(
                f"fill: with input=..., key=... must say where {target.own_key.name} is: a "
                "function of the batch, or the place or name of an item in it."
            )
        for what, given in (("key", key), ("input", input)):
            if given is not None and not callable(given) and type(given) not in (int, str):
                raise TypeError(
                    f"fill: {what} must be a function of the batch, or the place (int) or name "
                    f"(str) of an item in it, but got {type(given).__name__}."
                )

    def read(self, batch: Any) -> tuple[Any, Any]:
        """Returns the input and the key, as ``lookup_or_run`` takes them."""
        sample, key = self._read(batch)
        return sample, checked_keys(key)

    def _read(self, batch: Any) -> tuple[Any, Any]:
        own = self._target.own_key
        if self._key is None and own is not None:
            args, kwargs = self._arguments_in(batch, own)
            return own.of_call(self._target.owner, args, kwargs)
        sample = self._input_in(batch)
        if own is not None:
            args = sample if isinstance(sample, tuple) else (sample,)
            sample = own.parameters.input_of(own.parameters.bind(args, {}))
        if makes_content := content_function(self._key):
            return sample, makes_content(sample)
        key = self._key(batch) if callable(self._key) else _item(batch, self._key, "key")
        return sample, key_of_one_id(key) or key

    def _arguments_in(self, batch: Any, own: CallKey) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._input is not None:
            sample = self._input_in(batch)
            return (sample if isinstance(sample, tuple) else (sample,)), {}
        if isinstance(batch, Mapping):
            return (), dict(batch)
        if not isinstance(batch, (tuple, list)):
            return (batch,), {}
        if not own.is_consumed:
            return tuple(batch), {}
        *args, key = batch
        return tuple(args), {own.name: key}

    def _input_in(self, batch: Any) -> Any:
        if self._input is not None:
            reads = callable(self._input)
            return self._input(batch) if reads else _item(batch, self._input, "input")
        if isinstance(batch, (tuple, list)) and batch:
            if self._key == 0 and len(batch) > 1:
                raise ValueError("fill: key=0 is the first item, which is the input; pass input=1.")
            return batch[0]
        if isinstance(batch, Mapping):
            names = ", ".join(map(repr, batch))
            raise ValueError(
                f"fill: a batch is a dict of {names}; pass input=... with the name of one, or a "
                "function of the batch."
            )
        return batch


def _item(batch: Any, which: int | str, what: str) -> Any:
    try:
        if isinstance(batch, torch.Tensor):
            raise TypeError
        return batch[which]
    except (KeyError, IndexError, TypeError):
        kind = type(batch).__name__
        if isinstance(batch, Mapping):
            kind += f" of {', '.join(map(repr, batch))}"
        elif isinstance(batch, (tuple, list)):
            kind += f" of {len(batch)} items"
        raise ValueError(
            f"fill: {what}={which!r} is no item of a batch, which is a {kind}; pass {what}=... "
            "with a function of the batch."
        ) from None


def bytes_of(value: Any) -> int:
    """Sums the bytes of all tensors and arrays in a result."""
    found = [data for leaf in pytree.tree_leaves(value) for data in data_in(leaf)]
    return sum(getattr(x, "nbytes", 0) for x in found if not getattr(x, "is_nested", False))
