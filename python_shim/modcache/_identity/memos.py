# SPDX-License-Identifier: Apache-2.0
"""Functions that remember their results (``functools.lru_cache``), which may be out of date.

A walk follows the function inside. But when something that the function reads changes, it may still
return results from before, while the fingerprint is that of the new value. So what it reads is
watched from the first look on. After a change, nothing may be stored or looked up until the memory
is empty, or has been emptied since.
"""

from __future__ import annotations

import functools
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modcache._identity.contents import version_of
from modcache._identity.digest import digest_of
from modcache._identity.kinds import CALLABLE, UnidentifiedError

if TYPE_CHECKING:
    from modcache._identity.walk import Walk

_KIND = type(functools.lru_cache(maxsize=1)(repr))


@dataclass
class _Watched:
    """``calls``: the function's count of calls at the last look, reset when it is emptied."""

    reference: weakref.ref[Any]
    reads: object
    calls: int
    is_outdated: bool = False


_watched: dict[tuple[int, int], _Watched] = {}


class _Thread(threading.local):
    is_reading = False  # a recursive function reads itself


_thread = _Thread()


def look_at_memo(walk: Walk, function: Any) -> None:
    """Compares what a function with a memory reads now with what it read at the last look.

    A method may read anything in its object, so the whole module is compared for it. A walk that
    may refuse nothing gets a random leaf in place of an error, so that it equals no earlier walk.

    Raises:
        UnidentifiedError: its memory may hold results of values that have changed since.
    """
    walk.leaves.append(CALLABLE)
    walk.value(function.__wrapped__)
    if _thread.is_reading or (walk._is_tolerant and walk.refuses_outdated):
        return
    is_method = _is_method(function)
    subject = walk._root if is_method else function.__wrapped__
    _thread.is_reading = True
    try:
        reads = _reads_of(walk.apart(subject))
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
    """Finds the function that reads values of exactly this type; None for other types."""
    return look_at_memo if issubclass(kind, _KIND) else None


def _is_method(function: Any) -> bool:
    name = str(getattr(function, "__qualname__", ""))
    return "." in name.rpartition("<locals>.")[2]


def _reads_of(walk: Walk) -> object:
    tensors = [(id(each), version_of(each)) for each in walk.tensors]
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
    # Once it was emptied, it has been filled with results of what it reads now.
    was_emptied = calls < known.calls
    known.is_outdated = is_changed or (known.is_outdated and not was_emptied)
    known.reads, known.calls = reads, calls
    return known.is_outdated
