# SPDX-License-Identifier: Apache-2.0
"""Functions that remember what they returned (``functools.lru_cache``), and may be out of date.

Such a function is followed as the function inside. But once something that it reads has changed,
it may still answer with what it computed before, while the fingerprint is that of the new value. So
what it reads is watched from the first look on. From a change on nothing may be stored or looked up
until the memory is seen empty, or seen to have been emptied since.
"""

from __future__ import annotations

import functools
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from modcache._kinds import Mark, UnidentifiedError

if TYPE_CHECKING:
    from modcache._records import Records
    from modcache._walk import Walk

_CALLABLE = Mark("callable")
_KIND = type(functools.lru_cache(maxsize=1)(repr))


@dataclass
class _Watched:
    """``calls``: how many the function had counted at the last look; emptying it sets that to 0."""

    reference: weakref.ref[Any]
    reads: object
    calls: int
    is_outdated: bool = False


_watched: dict[tuple[int, int], _Watched] = {}


class _Thread(threading.local):
    is_reading = False  # what a function reads, which leads to it again where it is recursive


_thread = _Thread()


def look_at_memo(walk: Walk, function: Any) -> None:
    """Compares what a function with a memory reads now with what it read at the last look.

    A method may read whatever its object holds, so all of the module is compared there. Where
    nothing may be refused, what is found is like nothing that was found before.

    Raises:
        UnidentifiedError: its memory may hold results of values that have changed since.
    """
    walk.leaves.append(_CALLABLE)
    walk.value(function.__wrapped__)
    if _thread.is_reading or (walk._is_tolerant and walk.refuses_outdated):
        return
    is_method = _is_method(function)
    subject = walk._root if is_method else function.__wrapped__
    _thread.is_reading = True
    try:
        reads = _reads_of(subject, walk._records)
    finally:
        _thread.is_reading = False
    if _is_outdated(function, id(walk._root) if is_method else 0, reads):
        if not walk.refuses_outdated:
            walk.leaves.append(secrets.token_hex(16))
            return
        name = getattr(function, "__qualname__", "the function")
        raise UnidentifiedError(
            f"what {name} reads has changed, and its lru_cache still holds results from before: "
            f"call {name}.cache_clear()"
        )


def way_of_memo(kind: type) -> Callable[[Walk, Any], None] | None:
    """How to look at values of exactly this type; None for others."""
    return look_at_memo if issubclass(kind, _KIND) else None


def _is_method(function: Any) -> bool:
    name = str(getattr(function, "__qualname__", ""))
    return "." in name.rpartition("<locals>.")[2]


def _reads_of(subject: object, records: Records) -> object:
    # Both import this file.
    from modcache._digest import digest_of
    from modcache._walk import Walk

    holder = torch.nn.Module()
    holder.__dict__["value"] = subject
    walk = Walk(holder, records)
    tensors = [(id(each), None if each.is_inference() else each._version) for each in walk.tensors]
    return digest_of(walk.leaves), tensors


def _is_outdated(function: Any, owner: int, reads: object) -> bool:
    info = function.cache_info()
    calls = info.hits + info.misses
    key = (id(function), owner)
    known = _watched.get(key)
    if known is None or known.reference() is not function or info.currsize == 0:
        reference = weakref.ref(function, lambda _: _watched.pop(key, None))
        _watched[key] = _Watched(reference, reads, calls)
        return False
    is_changed = reads != known.reads
    # Emptied since it was found outdated, it was filled again with what was read then and is now.
    was_emptied = calls < known.calls
    known.is_outdated = is_changed or (known.is_outdated and not was_emptied)
    known.reads, known.calls = reads, calls
    return known.is_outdated
