# SPDX-License-Identifier: Apache-2.0
"""Notices that two samples of one pass over a stream have the same key."""

from __future__ import annotations

import logging
from typing import Any

import torch

from modcache._call.carriers import is_array
from modcache._data.variants import shared_zeros
from modcache._library import log

_MAX_KEYS = 1 << 16
_MAX_ITEMS = 32  # bytes of a text, or items of a list or array, that are compared
_MAX_DEPTH = 4


class RepeatedKeys:
    """Warns once, in whatever worker, that a key names two samples of one pass.

    Keys are checked until one pass has ended without a warning.

    ``owner``: the caller's name, for the message.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._is_done = shared_zeros(1)  # 1: nothing is checked any more, in all workers

    def new_pass(self) -> PassKeys | None:
        """Returns an object to note the keys of one pass with; None: they need not be checked."""
        return None if self._is_done[0] else PassKeys(self)

    def end(self) -> None:
        """Notes that a pass has ended."""
        self._is_done[0] = 1

    def warn(self, key: str) -> None:
        if self._is_done[0]:
            return
        self._is_done[0] = 1
        log.write(
            logging.WARNING,
            f"{self._owner}: two samples of one pass have the key {key!r}, so the second one gets "
            "the cached result of the first. Pass key=, a function of the raw sample that gives "
            "each its own key, such as key=lambda sample: (sample['file'], sample['index']).",
        )


class PassKeys:
    """The keys of one pass. Memory is bounded: a long pass is checked on a sample of its keys.

    A key may come twice with the same sample, as in a stream that repeats or resamples its shards.
    """

    def __init__(self, repeated: RepeatedKeys) -> None:
        self._repeated = repeated
        self._seen: dict[int, int] = {}  # hash of the key -> hash of the sample
        self._mask = 0  # keys whose hash has one of these bits are not in the sample of keys

    def note(self, keys: list[str], samples: list[Any]) -> None:
        """Notes raw samples, and warns if a key named another one before."""
        for key, sample in zip(keys, samples, strict=True):
            number = hash(key)
            if not number & self._mask:
                content = hash(_outline(sample, 0))
                if self._seen.setdefault(number, content) != content:
                    self._repeated.warn(key)
        while len(self._seen) > _MAX_KEYS:
            self._mask = 2 * self._mask + 1
            self._seen = {n: c for n, c in self._seen.items() if not n & self._mask}


def _outline(value: Any, depth: int) -> object:
    """Returns something that can be hashed, and that differs for most values that differ.

    Fields with names like ``__url__`` say where a sample is from, and are left out.
    """
    kind = type(value)
    if kind is bytes or kind is str:
        return kind, len(value), value[:: len(value) // _MAX_ITEMS + 1]
    if kind is int:
        return value
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return tuple(
            [
                (name, _outline(part, depth + 1))
                for name, part in value.items()
                if type(name) is not str or name[:2] != "__"
            ]
        )
    if isinstance(value, (list, tuple)):
        few = value[:: len(value) // _MAX_ITEMS + 1]
        return len(value), tuple(_outline(part, depth + 1) for part in few)
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), _numbers_in(value)
    if is_array(value):
        return str(value.dtype), value.shape, repr(value.flat[:: value.size // _MAX_ITEMS + 1])
    return repr(value) if isinstance(value, (int, float, complex)) else kind.__qualname__


def _numbers_in(tensor: torch.Tensor) -> str:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return ""
    flat = tensor.detach().reshape(-1)
    return repr(flat[:: flat.numel() // _MAX_ITEMS + 1].tolist())
