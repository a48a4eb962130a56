# SPDX-License-Identifier: Apache-2.0
"""The mode of the cache: that of the process, and the guards of a thread and its tasks.

The mode of the directory, the third level, is set from outside: ``modcache mode off DIR``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar, overload

import torch

from modcache._library.explicit import note_configured
from modcache._library.text import checked_text

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Nothing:
    """The default of an argument for which None may be a caller's mistake."""

    def __repr__(self) -> str:
        return "..."  # shown in signatures


_NOTHING = _Nothing()


@overload
def mode() -> str: ...
@overload
def mode(name: str) -> ModeGuard: ...
def mode(name: str | _Nothing = _NOTHING) -> str | ModeGuard:
    """Returns the effective mode, or a guard that restricts the calling thread for a while.

    ``mode()`` combines the modes of process, thread and directory for the calling thread: what one
    of them forbids is forbidden, and if one of them always runs, modules always run. The result is
    ``"off"``, ``"read"``, ``"on"``, ``"refresh"`` or ``"verify"``.

    ``mode("off")`` is a context manager and a decorator::

        with modcache.mode("off"):
            encoder_output = modcache.lookup_or_run(encoder, images, key)  # runs

        @modcache.mode("read")
        def evaluate(model): ...

    A guard holds for the calling thread, not for threads that are started inside. Among the asyncio
    tasks of a thread, it holds for the task that entered it and for those that were started inside,
    until it is left. ``torch.ops.cache`` and scripted models cannot tell tasks apart: if called
    directly, they obey all guards that are active on their thread. A guard can only forbid:
    ``mode("on")`` changes nothing. Guards nest, and end in any order. A guard may be entered again
    while it is active, and by several threads, each of which leaves it itself.

    Raises:
        TypeError: ``name`` is no str.
        ValueError: not one of the modes; the message lists them.
    """
    if isinstance(name, _Nothing):
        return _effective_mode()
    return ModeGuard(name)


def set_mode(mode: str) -> None:
    """Sets the process's mode; the next call of every thread sees it.

    Args:
        mode: ``"off"`` (always run, touch no file), ``"read"`` (look up, store nothing),
            ``"on"``, ``"refresh"`` (always run, replace what is stored) or ``"verify"`` (always
            run, compare with what is stored, store nothing).

    Raises:
        TypeError: not a str.
        ValueError: not one of the modes.
    """
    torch.ops.cache.set_mode(checked_text(mode, "mode"))
    note_configured({"mode": mode})


@dataclass(eq=False)
class _Entry:
    """One time that a guard was entered, until it is left."""

    guard: ModeGuard
    name: str


class _Thread(threading.local):
    """Entries of the calling thread's guards, in order, of all tasks."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.is_exact = False  # whether the level is that of the task, not that of all entries


# Entries of the calling task, including those inside which it was started.
_of_task: ContextVar[tuple[_Entry, ...]] = ContextVar("modcache.mode", default=())
_thread = _Thread()
active_entries: set[_Entry] = set()
"""Entries of all threads, until they are left. Hits check this first: without entries, a call need
not look at its task."""


class ModeGuard:
    """A context manager and a decorator; ``mode("off")`` returns one. See there."""

    def __init__(self, name: str) -> None:
        self._name = checked_text(name, "mode")
        # A wrong name raises here, not at a later call.
        torch.ops.cache._leave_mode(torch.ops.cache._enter_mode(self._name))

    def __enter__(self) -> None:
        entry = _Entry(self, self._name)
        active_entries.add(entry)
        _thread.entries.append(entry)
        _of_task.set((*_entries_of_task(), entry))
        _apply()

    def __exit__(self, *_: object) -> None:
        entry = self._last_entry()
        if entry is None:
            raise RuntimeError(
                f"mode({self._name!r}) is left by a thread that has not entered it; a guard holds "
                "for one thread, so leave it in the thread that entered it"
            )
        active_entries.discard(entry)
        _thread.entries.remove(entry)
        _of_task.set(_entries_of_task())
        _apply()

    def _last_entry(self) -> _Entry | None:
        """Returns this guard's last entry on this thread; the task's own one, if it has one."""
        own = [entry for entry in _thread.entries if entry.guard is self]
        of_task = [entry for entry in own if entry in _of_task.get()]
        found = of_task or own
        return found[-1] if found else None

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Returns a function that makes every call inside this guard."""
        _check_function(function, self._name)

        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return guarded

    def __repr__(self) -> str:
        return f"modcache.mode({self._name!r})"


def _entries_of_task() -> tuple[_Entry, ...]:
    return tuple(entry for entry in _of_task.get() if entry in active_entries)


def _apply() -> None:
    entries = _entries_of_task() if _thread.is_exact else _thread.entries
    torch.ops.cache._follow_modes([entry.name for entry in entries])


def is_among_tasks() -> bool:
    """Whether the calling thread has guards that are not the calling task's, or lacks such.

    A call that obeys the mode is then made inside ``as_task``. Outside of it, the thread's level is
    that of all its guards, so that code without tasks forbids too much rather than too little.
    """
    if not active_entries or _thread.is_exact:
        return False
    entries = _thread.entries  # all of them are active
    return list(_of_task.get()) != entries and list(_entries_of_task()) != entries


@contextlib.contextmanager
def as_task() -> Iterator[None]:
    """Makes the calling thread's level that of the calling task."""
    before = _thread.is_exact
    _thread.is_exact = True
    _apply()
    try:
        yield
    finally:
        _thread.is_exact = before
        _apply()


def obeying_tasks(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function that obeys the guards of the calling task."""

    @functools.wraps(function)
    def obeying(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_among_tasks():
            return function(*args, **kwargs)
        with as_task():
            return function(*args, **kwargs)

    return obeying


def modes_of_thread() -> list[str]:
    """Returns the modes of the guards that are active on the calling thread."""
    return [entry.name for entry in _thread.entries]


@obeying_tasks
def _effective_mode() -> str:
    return str(torch.ops.cache.mode())


@obeying_tasks
def where_set(name: str) -> str:
    """Says at which level the effective mode is set. ``name``: the effective mode."""
    process, thread, directory = torch.ops.cache._mode_levels()
    if process == name:
        return f"the mode of this process is '{name}' (modcache.set_mode, or MODCACHE_MODE)"
    if thread == name:
        return f"the mode of this thread is '{name}' (a modcache.mode guard)"
    if directory == name:
        path = torch.ops.cache.settings()["dir"]
        return f"the mode of the directory is '{name}' ('modcache mode on {path}' changes it)"
    return (
        f"process ('{process}'), thread ('{thread}') and directory ('{directory}') together leave "
        f"the mode '{name}'"
    )


@obeying_tasks
def mode_of_context() -> str:
    """Returns the level of the calling thread and task alone."""
    return str(torch.ops.cache._mode_levels()[1])


def _check_function(function: object, name: str) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise TypeError(f"put @modcache.mode({name!r}) below @{kind}, next to the function itself")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        kind = "a coroutine function, during which its thread does other work"
    elif inspect.isgeneratorfunction(function):
        kind = "a generator function, between whose items its caller does other work"
    elif inspect.isroutine(function) or isinstance(function, functools.partial):
        return
    elif isinstance(function, type):
        kind = f"the class {function.__name__}"
    else:
        kind = f"an object of type {type(function).__name__}"
    raise TypeError(
        f"@modcache.mode({name!r}) decorates functions and methods, but got {kind}. "
        f"Use `with modcache.mode({name!r}):` around the calls that it is meant for."
    )
