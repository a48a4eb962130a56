# SPDX-License-Identifier: Apache-2.0
"""Parts of a fill that machines share: who has which, as the server of the remote tier says."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

# Somebody who does not renew his part for so long has died.
_LEFT_AFTER_S = 20.0
# Marks of what is done belong to a run, which ends so long after the last process that renews it.
_RUN_LEFT_AFTER_S = 600.0
# The marks themselves only have to outlast every run.
_DONE_FOR_S = 7 * 86_400.0
# A server that was just left alone is asked so often before the fill goes on without it.
_ASKS = 6
_PAUSE_S = 0.5

OTHERS: Final = 0
MINE: Final = 1
DONE: Final = 2
NOBODYS: Final = 3


class Parts:
    """The parts that this process holds, which a thread renews while ``with`` lasts.

    All processes that fill the same belong to one run. It lasts while any of them lives, and so do
    the marks of what is done. Whoever leaves gives back what it has not ended.

    Args:
        scope: where the results go.
        generation: that of the scope, as ``generation_of`` said.
        content: text that says what is filled, the same on all machines that share it.
    """

    def __init__(self, scope: str, generation: str, content: str) -> None:
        self._scope = scope
        self._generation = generation
        self._content = content
        self._run = secrets.token_hex(16)  # until another one is joined
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        self._held: dict[str, str] = {}  # part -> its name when it was taken
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="modcache-fill", daemon=True)

    def __enter__(self) -> Parts:
        self._join()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # it must not hide the error that ends the fill
            self.give_all_back()

    @property
    def can_be_asked(self) -> bool:
        """Whether the server answers at the moment."""
        return bool(_library().look([self._work]))

    def look(self, parts: Sequence[str]) -> list[int]:
        """Says who has each part, by one question: OTHERS, DONE or NOBODYS.

        Where the server cannot be asked, they are nobody's.
        """
        holders: list[int] = _library().look([self._name(part) for part in parts])
        return holders or [NOBODYS] * len(parts)

    def take(self, part: str) -> int:
        """Takes the part if nobody has it, and says who has it now: MINE, OTHERS or DONE.

        Where the server cannot be asked, everything is this process's: what two machines run twice
        costs time, and what none runs is missing.
        """
        name = self._name(part)
        holder = int(_library().take(name, self._owner, _ms(_LEFT_AFTER_S)))
        if holder == MINE:
            self._held[part] = name
        return MINE if holder < 0 else holder

    def end(self, part: str, *, is_complete: bool) -> bool:
        """Marks the part as done, once the server has all its results.

        Args:
            part: one that this process took.
            is_complete: all its results were stored or found.

        Returns:
            Whether it has them. If not, the part is nobody's again.
        """
        name = self._held.get(part) or self._name(part)
        try:
            if not is_complete:
                _library().give_back(name, self._owner)
                return False
            # It is renewed while its last results are written.
            return int(_library().end(name, self._owner, _ms(_DONE_FOR_S))) == 1
        finally:
            self._held.pop(part, None)

    def move_on(self) -> bool:
        """Whether the scope was cleared on the server since this was asked, up to a second ago.

        Then marks of what is done mean nothing any more, and parts are those of a new work.
        """
        generation = str(_library().generation(self._scope))
        if generation in ("", self._generation):
            return False
        self._generation = generation
        self._join()
        return True

    def give_all_back(self) -> None:
        """Leaves to others what this process has taken and not ended."""
        for part, name in tuple(self._held.items()):
            _library().give_back(name, self._owner)
            del self._held[part]

    @property
    def _work(self) -> str:
        return "\0".join((self._scope, self._generation, self._content))

    def _name(self, part: str) -> str:
        return f"{self._work}\0{self._run}\0{part}"

    def _join(self) -> None:
        """Makes the run of those who fill the same this one's, or this one's theirs."""
        joined = str(_library().join(self._work, self._run, _ms(_RUN_LEFT_AFTER_S)))
        self._run = joined or self._run

    def _renew(self) -> None:
        while not self._stop.wait(_LEFT_AFTER_S / 4):
            # A remote that was switched off meanwhile may come back.
            with contextlib.suppress(Exception):
                self._renew_once()

    def _renew_once(self) -> None:
        if _library().renew(self._work, self._run, _ms(_RUN_LEFT_AFTER_S)) == 0:
            self._join()  # the server lost the run, or could not be asked at the start
        for name in tuple(self._held.values()):
            _library().renew(name, self._owner, _ms(_LEFT_AFTER_S))


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

    Returns:
        The text; an empty one if the server does not answer, also after some seconds.

    Raises:
        ValueError: there is no server, or one that cannot share work.
    """
    _library().look([scope])  # which refuses such a server without asking it
    for ask in range(_ASKS):
        if ask > 0:
            time.sleep(_PAUSE_S)
        if generation := str(_library().generation(scope)):
            return generation
    return ""


def digest_of(value: object) -> str:
    """A short text that stands for the value's ``repr``."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _library() -> Any:
    return torch.classes.cache.SharedWork
