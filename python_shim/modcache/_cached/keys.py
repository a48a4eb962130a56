# SPDX-License-Identifier: Apache-2.0
"""``modcache.keys``: the keys of all cached calls inside of a block."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from modcache._cached.call_key import CallKey
from modcache._call import key_block
from modcache._call.key_block import Block
from modcache._call.keys import Keys

_P = ParamSpec("_P")
_R = TypeVar("_R")


def keys(
    keys: Keys | Callable[..., Any] | None = None,
    *,
    part: str = "",
) -> KeysGuard:
    """Gives the keys of the rows to every cached module called inside: a context manager.

    What is cached without a key, ``modcache.cached(module)``, takes its keys from the block around
    the call, so a tower deep in somebody else's pipeline is cached without a change to any
    ``forward``. What has a key of its own keeps that; where its key is a keyword that only the
    cache gets, the block gives it to calls that leave it out.

    >>> import modcache, torch
    >>> tower = modcache.cached(torch.nn.Linear(4, 2), freeze=True)
    >>> pipeline = torch.nn.Sequential(tower, torch.nn.ReLU())
    >>> batch, other, ids = torch.randn(3, 4), torch.randn(3, 4), torch.arange(3)
    >>> with modcache.keys(ids):
    ...     first = pipeline(batch)
    ...     with modcache.keys(part="negative"):
    ...         second = pipeline(other)
    >>> with modcache.keys(ids):
    ...     modcache.explain(tower, batch).status
    'hit'

    It is a decorator, too. There the keys may be a function of the arguments, of which it names as
    many as it needs::

        @modcache.keys(lambda batch: batch["ids"])
        def training_step(self, batch, batch_idx): ...

    Args:
        keys: one key per row, as ``lookup_or_run`` takes them: a list of text, or ids as a list of
            int or an integer tensor [B]; then every tensor among the arguments of a call has the
            first dimension B. Or the column of keys in a batch of a ``KeyedDataset``. A str is one
            key, for the whole result of each call. Without keys, those of the block outside hold
            on.
        part: tells the calls of one module in one block apart (prompt and negative prompt, two
            siamese towers). It becomes a part of each key. A block with a part and no keys adds it
            to those of the blocks outside, and changes nothing where there is no block outside.

    Returns:
        A context manager and decorator, which may be entered again, also while it is active.

    Raises:
        TypeError: neither keys nor a part, or keys of a wrong type; a function without a call to
            take its arguments from; a decorated generator, coroutine function or class.
        ValueError: empty keys, ids that are no integer tensor [B] or [B, 1], or text that is no
            valid Unicode or has the separator of parts in it. In a cached call: a number of keys
            that is not the number of rows; and a second call of one module, method or function in
            one block and part with other tensors, arrays or images than the first. Calls with the
            same ones, or with equal ones, are no second call.

    The inner one of two blocks counts, and the outer one again after it. A block holds for the
    thread and the asyncio task that entered it, with the tasks that were started inside: not for
    other threads, and not for forked or spawned workers. While a cached module runs, none holds,
    also where its result is not kept, as in training: what it calls without a key of its own is a
    part of it, and runs uncached. So cache the frozen part, and not what is trained around it. A
    generator that yields inside of a block leaves it open for its consumer, between its items.

    Gradient checkpointing runs a forward again in ``backward()``, where no block is known to be the
    one around that forward. So such a replay runs plainly, and is not counted, in a block too.

    Outside of any block, what is cached without a key runs uncached. That is counted in
    ``bypassed_type``, warned about once, and an error with ``strict=true``. The keys of a block are
    never recorded: under ``torch.compile`` such a call breaks the graph, and ``torch.export``
    refuses it. Calls inside TorchScript code cannot see a block.
    """
    if keys is None and not part:
        raise TypeError('modcache.keys needs keys, one per row, or part="...", or both.')
    return _outside_of_graphs(KeysGuard, keys, part)  # type: ignore[no-any-return]


class KeysGuard:
    """A context manager and a decorator; ``modcache.keys`` returns one. See there."""

    def __init__(self, keys: Any, part: object) -> None:
        self._function = keys if callable(keys) else None
        is_given = keys is not None and self._function is None
        self._keys = key_block.checked_block_keys(keys) if is_given else None
        self._part = key_block.checked_part(part)
        self._entered: list[Block] = []

    def __enter__(self) -> None:
        _outside_of_graphs(self._enter)

    def __exit__(self, *_: object) -> None:
        _outside_of_graphs(self._leave)

    def _enter(self) -> None:
        if self._function is not None:
            raise TypeError(
                "modcache.keys: a function of the arguments is for the decorator; in a with "
                "statement give the keys themselves."
            )
        self._entered.append(key_block.enter(self, self._keys, self._part))

    def _leave(self) -> None:
        if not self._entered:
            raise RuntimeError("modcache.keys: the block is left, but was not entered.")
        block = self._own_block()
        self._entered.remove(block)
        key_block.leave(block)

    def _own_block(self) -> Block:
        """Returns the block to leave: the calling task's innermost one of this guard."""
        block = key_block.current()
        while block is not None and block not in self._entered:
            block = block.outer
        return block or self._entered[-1]

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Returns a function that makes every call inside such a block."""
        _check_function(function)
        key = (
            CallKey(
                self._function, inspect.signature(function), _name_of(function), target=function
            )
            if (self._function is not None)
            else None
        )

        @functools.wraps(function)
        def inside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            guard = (
                self if key is None else keys(key.of_call(None, args, kwargs)[1], part=self._part)
            )
            with guard:
                return function(*args, **kwargs)

        return inside


def _outside_of_graphs(function: Callable[..., Any], *args: Any) -> Any:
    if not torch.compiler.is_compiling():
        return function(*args)
    from modcache._cached.eager_mode import in_eager_mode

    return in_eager_mode(function, *args)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", "") or type(function).__qualname__)


def _check_function(function: Any) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(
            f"put @modcache.keys(...) below @{type(function).__name__}, next to the function itself"
        )
    is_suspending = any(
        check(function)
        for check in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
    )
    if is_suspending or isinstance(function, type) or not callable(function):
        raise TypeError(
            f"@modcache.keys(...) decorates functions and methods, but got {_name_of(function)}, a "
            "generator or coroutine function, a class or no function. Use `with "
            "modcache.keys(...):` around the calls that it is meant for."
        )
