# SPDX-License-Identifier: Apache-2.0
"""``with`` blocks of modes and caches: those of a thread, and those of its asyncio tasks.

The library knows threads alone. So a call that was made by one of several tasks of a thread is made
inside ``as_task``, which gives the thread what the task has.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(eq=False)
class Entry:
    """One time that a block was entered, until it is left."""

    owner: object  # the mode guard, or the Cache
    outer: tuple[Entry, ...]  # the blocks of the task around it
    mode: str | None = None
    cache: Any = None  # the library's object


class _Thread(threading.local):
    """Entries of the calling thread, in order, of all tasks."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.is_exact = False  # the thread has what the task has, not what all entries have
        # A value of _of_task with exactly these entries; None: not known.
        self.same_as: tuple[Entry, ...] | None = None


# Entries of the calling task, including those inside which it was started.
_of_task: ContextVar[tuple[Entry, ...]] = ContextVar("modcache.tasks", default=())
_thread = _Thread()
_use_cache: Any = torch.classes.cache.Cache.use
active_entries: set[Entry] = set()
"""Entries of all threads, until they are left. Hits check this first: without entries, a call need
not look at its task."""


def enter(owner: object, mode: str | None = None, cache: Any = None) -> None:
    """Enters a block of ``owner``, for the calling task."""
    entry = Entry(owner, entries_of_task(), mode, cache)
    active_entries.add(entry)
    _thread.entries.append(entry)
    _of_task.set((*entry.outer, entry))
    _apply(has_cache=cache is not None)


def leave(owner: object) -> bool:
    """Leaves the last block of ``owner``; of several tasks, the own one. False: there is none."""
    own = [entry for entry in _thread.entries if entry.owner is owner]
    found = [entry for entry in own if entry in _of_task.get()] or own
    if not found:
        return False
    entry = found[-1]
    active_entries.discard(entry)
    _thread.entries.remove(entry)
    _of_task.set(entries_of_task())
    _apply(has_cache=entry.cache is not None)
    return True


def entries_of_task() -> tuple[Entry, ...]:
    """Returns the active blocks of the calling task."""
    return tuple(entry for entry in _of_task.get() if entry in active_entries)


def entries_of_thread() -> list[Entry]:
    """Returns the active blocks of the calling thread, of all tasks."""
    return list(_thread.entries)


def current_owner() -> Any:
    """Returns the Cache that calls of the calling task use; None: the default of the process."""
    caches = [entry for entry in entries_of_task() if entry.cache is not None]
    return caches[-1].owner if caches else None


maker: ContextVar[Any] = ContextVar("modcache.maker", default=None)
"""The Cache whose ``cached`` or ``lazy`` is being called: what they make always uses it."""


def _apply(*, has_cache: bool) -> None:
    _thread.same_as = None
    entries = entries_of_task() if _thread.is_exact else _thread.entries
    torch.ops.cache._follow_modes([entry.mode for entry in entries if entry.mode is not None])
    if has_cache:
        caches = [entry for entry in entries if entry.cache is not None]
        _use_cache(caches[-1].cache if caches else None, _overlap(caches))


def _overlap(caches: list[Entry]) -> bool:
    """Whether several tasks of the thread use different caches.

    Each task uses the cache of its innermost block, which no other block has around it.
    """
    if len(caches) < 2:
        return False
    outer = {around for entry in caches for around in entry.outer}
    return len({id(entry.cache) for entry in caches if entry not in outer}) > 1


def is_among_tasks() -> bool:
    """Whether the calling thread has blocks that are not the calling task's, or lacks such.

    A call is then made inside ``as_task``. Outside of it, the thread's mode is that of all its
    guards, so that code without tasks forbids too much rather than too little.
    """
    of_task = _of_task.get()
    if of_task is _thread.same_as or not active_entries or _thread.is_exact:
        return False
    entries = _thread.entries  # all of them are active
    if list(of_task) != entries:
        return list(entries_of_task()) != entries
    _thread.same_as = of_task
    return False


@contextlib.contextmanager
def as_task() -> Iterator[None]:
    """Gives the calling thread the mode and the cache of the calling task."""
    before = _thread.is_exact
    has_cache = any(entry.cache is not None for entry in active_entries)
    _thread.is_exact = True
    _apply(has_cache=has_cache)
    try:
        yield
    finally:
        _thread.is_exact = before
        _apply(has_cache=has_cache)


@contextlib.contextmanager
def in_default_cache() -> Iterator[None]:
    """Gives the calling thread the default cache of the process.

    For operators that are called directly. Functions under ``obeying_tasks`` may give the thread
    the cache of the task again.
    """
    if not active_entries:
        yield
        return
    _use_cache(None, False)
    try:
        yield
    finally:
        _apply(has_cache=True)


def obeying_tasks(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function that uses the mode and the cache of the calling task."""

    @functools.wraps(function)
    def obeying(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_among_tasks():
            return function(*args, **kwargs)
        with as_task():
            return function(*args, **kwargs)

    return obeying
