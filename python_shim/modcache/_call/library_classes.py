# SPDX-License-Identifier: Apache-2.0
"""Classes of other libraries that are known by name, so that nothing is imported.

Each is taken apart into tensors, and that only while its object is as the class would make it of
them. Another version of the library, with more attributes, is then a value that is not stored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from modcache._code.names import plain_name


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


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _check_same(made: Any, value: Any, but: tuple[str, ...] = ()) -> None:
    """Raises ValueError if two objects differ in an attribute that is not named in ``but``."""
    ours, theirs = vars(made), vars(value)
    names = ours.keys() - set(but)
    if ours.keys() != theirs.keys() or not all(_is_same(ours[n], theirs[n]) for n in names):
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
