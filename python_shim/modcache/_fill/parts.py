# SPDX-License-Identifier: Apache-2.0
"""Parts of a fill that machines share through the server of the remote tier."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from modcache._fill.share import loader_of

# Somebody who does not renew his part for so long has died.
_LEFT_AFTER_S = 20.0
# A part that is done is not looked at again for so long; then its rows are looked up once more.
_DONE_FOR_S = 600.0
_PAUSE_S = 0.5

_OTHERS, _MINE, _DONE = 0, 1, 2


class Parts:
    """The parts that this process took, which a thread renews while ``with`` lasts.

    Args:
        work: text that is the same on all machines that share the work, and no other's.
    """

    def __init__(self, work: str) -> None:
        self._work = work
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="modcache-fill", daemon=True)

    def __enter__(self) -> Parts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self, part: str) -> int:
        """Whose the part is: 1: this process's; 0: somebody else's; 2: it is done.

        Where the server cannot be asked, everything is this process's: what two machines run twice
        costs time, and what none runs is missing.
        """
        name = self._name(part)
        holder = int(_library().take(name, self._owner, int(_LEFT_AFTER_S * 1000)))
        if holder == _MINE:
            self._held.add(name)
        return _MINE if holder < 0 else holder

    def end(self, part: str) -> None:
        """The part is done, once the server has all its results."""
        name = self._name(part)
        _library().end(name, self._owner, int(_DONE_FOR_S * 1000))
        self._held.discard(name)

    def _name(self, part: str) -> str:
        return f"{self._work}\0{part}"

    def _renew(self) -> None:
        while not self._stop.wait(_LEFT_AFTER_S / 4):
            for name in tuple(self._held):
                _library().renew(name, self._owner, int(_LEFT_AFTER_S * 1000))


@contextlib.contextmanager
def sharing_hits() -> Iterator[None]:
    """Has the hits of the calling thread given to the server as well, where that lacks them.

    A process that died may have left them in the directory alone.
    """
    before = _library().share_hits(True)
    try:
        yield
    finally:
        _library().share_hits(before)


def generation_of(scope: str) -> str:
    """Text that changes when the scope is cleared on the server.

    Raises:
        ValueError: there is no server, or one that cannot share work.
    """
    return str(_library().generation(scope))


def _library() -> Any:
    return torch.classes.cache.SharedWork


def shared_batches(
    loader: Iterable[Any], parts: Parts, part_of: Callable[[Any], str]
) -> Iterator[tuple[Any, str]]:
    """Yields the batches that this process is to run, each with its part, until all are done.

    ``part_of`` says the part of a batch that was loaded. Of a DataLoader over a map-style dataset
    only the batches that this process took are loaded. The caller ends each part.

    Raises:
        TypeError: the loader cannot be iterated.
        ValueError: the loader can be iterated only once.
    """
    if type(loader) is DataLoader and loader.batch_sampler is not None:
        yield from _of_map_style(loader, parts)
        return
    if iter(loader) is loader:
        raise ValueError(
            "fill: share=True goes through the loader again for what others leave undone, so it "
            "needs a DataLoader or a list of batches and not an iterator "
            f"({type(loader).__name__})."
        )
    done: set[str] = set()
    while True:
        left = took = 0
        for batch in loader:
            part = part_of(batch)
            if part in done:
                continue
            holder = parts.take(part)
            if holder == _OTHERS:
                left += 1
                continue
            done.add(part)
            if holder == _MINE:
                took += 1
                yield batch, part
        if left == 0:
            return
        if took == 0:
            time.sleep(_PAUSE_S)


class _Taken(Sampler[list[Any]]):
    """The batches of one round through what is not done, as far as this process gets them."""

    def __init__(self, open_parts: dict[str, list[Any]], parts: Parts) -> None:
        self._open = open_parts
        self._parts = parts
        self.taken: deque[str] = deque()

    def __iter__(self) -> Iterator[list[Any]]:
        for part, indices in tuple(self._open.items()):
            holder = self._parts.take(part)
            if holder == _OTHERS:
                continue
            del self._open[part]
            if holder == _MINE:
                self.taken.append(part)
                yield indices


def _of_map_style(loader: DataLoader[Any], parts: Parts) -> Iterator[tuple[Any, str]]:
    assert loader.batch_sampler is not None
    batches = [list(indices) for indices in loader.batch_sampler]
    # Each begins in another place, so that machines seldom ask for one part at once.
    start = random.SystemRandom().randrange(len(batches)) if batches else 0
    ordered = batches[start:] + batches[:start]
    open_parts = {_digest_of(indices): indices for indices in ordered}
    while open_parts:
        round_of = _Taken(open_parts, parts)
        before = len(open_parts)
        for batch in loader_of(loader, round_of):
            yield batch, round_of.taken.popleft()
        if open_parts and len(open_parts) == before:
            time.sleep(_PAUSE_S)


def text_of_keys(keys: Any) -> str:
    """The part of a batch that was loaded, by its keys."""
    listed = keys.tolist() if isinstance(keys, torch.Tensor) else keys
    return _digest_of(listed)


def _digest_of(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
