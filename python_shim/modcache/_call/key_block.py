# SPDX-License-Identifier: Apache-2.0
"""The keys that ``with modcache.keys(ids):`` gives to the cached calls inside of it.

A block holds for one thread, and for the asyncio task that entered it with those that it started,
until it is left. A forked child is outside of its parent's blocks. While a cached module runs, it
may have a part of the rows alone, so no block holds there, also where the result is not kept: what
it calls runs as a part of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

from modcache._call.keys import checked_keys
from modcache._library.compiled_part import guards
from modcache._library.text import checked_text

Keys = str | list[str] | torch.Tensor

PART = "\x1fpart="  # between a key and its part, and between two parts; no part has a \x1f
_forks = 0  # how many forks lie between this process and the one that imported this module


class Block:
    """One time that a block was entered, until it is left.

    Args:
        guard: what was entered.
        keys: without parts; None: there are none, and calls run as they do outside of any block.
        parts: of this block and of those outside that it adds to.
        calls: what the calls with these keys, under any part, leave for later ones to be compared
            with; None: the block has keys of its own, and nothing was called yet.
    """

    def __init__(
        self,
        guard: object,
        keys: Keys | None,
        parts: tuple[str, ...] = (),
        calls: dict[Any, Any] | None = None,
    ) -> None:
        self.guard = guard
        self.plain = keys
        self.parts = parts
        self.keys = None if keys is None else with_parts(keys, parts)
        self.calls: dict[Any, Any] = {} if calls is None else calls
        self._owns_calls = calls is None
        self.outer: Block | None = current()
        self.is_suspended: bool = (
            keys is None and self.outer is not None and self.outer.is_suspended
        )
        self._is_open = True
        self._place = (threading.get_ident(), _forks)

    def holds(self) -> bool:
        """Whether it is open, and was entered by the calling thread of this process."""
        return self._is_open and self._place == (threading.get_ident(), _forks)

    def close(self) -> None:
        self._is_open = False
        if self._owns_calls:
            self.calls.clear()  # a task that was started inside may keep the block for long


# The innermost block of the calling task, or one that was left since. The compiled part reads it.
_of_task: ContextVar[Block | None] = (
    ContextVar("modcache.keys", default=None) if guards is None else guards.block
)


def current() -> Block | None:
    """Returns the innermost block that holds here."""
    block = _of_task.get()
    while block is not None and not block.holds():
        block = block.outer
    return block


def is_outside() -> bool:
    """Whether no block was entered here, and no backward pass runs in this thread."""
    return _of_task.get() is None and not is_in_backward()


def decides() -> bool:
    """Whether blocks say what a cached call without a key does; never while it is compiled."""
    if torch.compiler.is_compiling():
        return False
    block = current()
    is_in_block = block is not None and (block.is_suspended or block.keys is not None)
    return is_in_block or is_in_backward()


def is_in_backward() -> bool:
    """Whether autograd runs in this thread: gradient checkpointing replays a forward there.

    The block around that forward may be left by then, or be that of another batch, and none holds
    in the threads that autograd has for accelerators.
    """
    return torch._C._current_graph_task_id() != -1


def enter(guard: object, keys: Keys | None, part: str) -> Block:
    """Enters a block: with keys of its own, or with a part for those of the block outside."""
    parts = (part,) if part else ()
    outer = current()
    if keys is None and outer is not None:
        block = Block(guard, outer.plain, (*outer.parts, *parts), outer.calls)
    else:
        block = Block(guard, keys, parts)
    _of_task.set(block)
    return block


def leave(block: Block) -> None:
    """Leaves a block, in any order, and also in another task than it was entered in."""
    block.close()
    _of_task.set(current())


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Has no block hold inside."""
    if current() is None:
        yield
        return
    block = Block(None, None)
    block.is_suspended = True
    token = _of_task.set(block)
    try:
        yield
    finally:
        _of_task.reset(token)


def keys_of_call() -> Keys | None:
    """Returns the keys that a cached call has here; None: it runs uncached."""
    block = current()
    return None if block is None else block.keys


def keys_of_block(who: str) -> Keys:
    """Returns the keys, with their parts, that a cached call has here.

    Raises:
        TypeError: there are none; ``who`` needs them.
    """
    block = current()
    if block is None or block.keys is None:
        raise TypeError(f"{who} needs a key, or `with modcache.keys(ids):` around it.")
    return block.keys


def checked_block_keys(keys: Any) -> Keys:
    """Returns keys as a block holds them, so that later changes of the caller's do not matter.

    Raises:
        TypeError, ValueError: no keys that ``lookup_or_run`` takes, or text that has ``PART``.
    """
    checked = checked_keys(keys)
    if isinstance(checked, torch.Tensor):
        return checked.detach().to("cpu", copy=True)
    for key in [checked] if isinstance(checked, str) else checked:
        if not key:
            raise ValueError("modcache.keys: a key is empty; each key names a sample.")
        if PART in key:
            raise ValueError(
                f"modcache.keys: the key {key!r} has {PART!r} in it, which stands between a key "
                "and its part."
            )
    return checked


def checked_part(part: object) -> str:
    """Raises TypeError or ValueError for what is no name of a part; "" stands for none."""
    text = checked_text(part, "part", '"negative"')
    if "\x1f" in text:
        raise ValueError(f"modcache.keys: part={text!r} has the character U+001F in it.")
    return text


def with_parts(keys: Keys, parts: tuple[str, ...]) -> Keys:
    """Returns the keys under which a part of each sample is kept: ``17``, U+001F, ``part=left``."""
    if not parts:
        return keys
    end = "".join(f"{PART}{part}" for part in parts)
    if isinstance(keys, str):
        return keys + end
    return [f"{key}{end}" for key in (keys.tolist() if isinstance(keys, torch.Tensor) else keys)]


def _leave_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_leave_in_child)
