# SPDX-License-Identifier: Apache-2.0
"""The runtime flag: the process's mode, and the guards of a thread.

The third level, the directory's mode, is set from outside: ``modcache mode off DIR``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar, overload

import torch

from modcache._text import checked_text

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Nothing:
    """Stands where no argument was given: None may be a caller's mistake."""

    def __repr__(self) -> str:
        return "..."  # in signatures


_NOTHING = _Nothing()


@overload
def mode() -> str: ...
@overload
def mode(name: str) -> ModeGuard: ...
def mode(name: str | _Nothing = _NOTHING) -> str | ModeGuard:
    """The effective mode, or a guard that restricts the calling thread for a while.

    ``mode()`` is what is left for the calling thread when process, thread and directory are taken
    together: a permission that is missing at any is missing, always running at any wins. It is one
    of ``"off"``, ``"read"``, ``"on"``, ``"refresh"`` and ``"verify"``.

    ``mode("off")`` is a context manager and a decorator::

        with modcache.mode("off"):
            encoder_output = modcache.lookup_or_run(encoder, images, key)  # runs

        @modcache.mode("read")
        def evaluate(model): ...

    It holds for the calling thread alone, not for threads that are started inside. It can only
    take away: ``mode("on")`` changes nothing. Guards nest; one guard may be entered again
    while it is active, and by several threads. Leave guards in the reverse order of entering them.

    Raises:
        TypeError: ``name`` is no str.
        ValueError: not one of the modes; the message lists them.
    """
    if isinstance(name, _Nothing):
        return str(torch.ops.cache.mode())
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
    torch.ops.cache.set_mode(checked_text(mode, "mode", '"off"'))


class ModeGuard:
    """What ``mode("off")`` returns: a context manager and a decorator. See there."""

    def __init__(self, name: str) -> None:
        self._name = checked_text(name, "mode", '"off"')
        self._entered = threading.local()
        _leave(_enter(self._name))  # a wrong name is an error here and not at some later call

    def __enter__(self) -> None:
        before = self._befores()
        before.append(_enter(self._name))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        before = self._befores()
        if not before:
            raise RuntimeError(
                f"mode({self._name!r}) is left by a thread that has not entered it; a guard holds "
                "for one thread, so leave it in the thread that entered it"
            )
        _leave(before.pop())

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """The function, with every call of it inside this guard."""
        _check_function(function, self._name)

        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return guarded

    def __repr__(self) -> str:
        return f"modcache.mode({self._name!r})"

    def _befores(self) -> list[int]:
        """The calling thread's modes before each time it entered and has not left yet."""
        if not hasattr(self._entered, "befores"):
            self._entered.befores = []
        befores: list[int] = self._entered.befores
        return befores


def _enter(name: str) -> int:
    return int(torch.ops.cache._enter_mode(name))


def _leave(before: int) -> None:
    torch.ops.cache._leave_mode(before)


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
