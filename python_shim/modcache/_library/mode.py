# SPDX-License-Identifier: Apache-2.0
"""The mode of the cache: that of the process, and the guards of a thread and its tasks.

The mode of the directory, the third level, is set from outside: ``modcache mode off DIR``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

import torch

from modcache._library.explicit import note_configured
from modcache._library.tasks import enter, entries_of_thread, leave, obeying_tasks
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


class ModeGuard:
    """A context manager and a decorator; ``mode("off")`` returns one. See there."""

    def __init__(self, name: str) -> None:
        self._name = checked_text(name, "mode")
        # A wrong name raises here, not at a later call.
        torch.ops.cache._leave_mode(torch.ops.cache._enter_mode(self._name))

    def __enter__(self) -> None:
        enter(self, mode=self._name)

    def __exit__(self, *_: object) -> None:
        if not leave(self):
            raise RuntimeError(
                f"mode({self._name!r}) is left by a thread that has not entered it; a guard holds "
                "for one thread, so leave it in the thread that entered it"
            )

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


def modes_of_thread() -> list[str]:
    """Returns the modes of the guards that are active on the calling thread."""
    return [entry.mode for entry in entries_of_thread() if entry.mode is not None]


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
