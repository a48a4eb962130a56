# SPDX-License-Identifier: Apache-2.0
"""How a walk looks at what installed packages hold in this process.

Much of it cannot be hashed and does not matter (locks, handles, memories of their own). What cannot
be hashed counts by its type, and while a snapshot holds by its identity. Code of the user's that a
package holds is not let off: what makes that unknown makes the module unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modcache._kinds import Mark, UnidentifiedError
from modcache._names import is_packaged
from modcache._tokens import ATOMS

if TYPE_CHECKING:
    from modcache._walk import Walk

_OTHER = Mark("other")
_MOST_LEAVES = 4096  # of one value


class OwnCodeError(UnidentifiedError):
    """Code of the user's, reached through a package, that identifies nothing."""


class _TooLargeError(Exception):
    """A value of more leaves than are looked at."""


class Lenient:
    """Stands beside one walk over values of packages."""

    def __init__(self) -> None:
        self.passed_over: set[int] = set()  # ids of values that could not be hashed
        self._room = 0

    def whole_value(self, walk: Walk, value: object) -> None:
        """A value where the code of a package reads it."""
        self._room = len(walk.leaves) + _MOST_LEAVES
        mark = _Mark(walk)
        try:
            walk.value(value)
        except _TooLargeError:
            mark.roll_back(walk)
            self._pass_over(walk, value)

    def value(self, walk: Walk, look: Any, value: Any) -> None:
        """In the place of ``look(walk, value)``, which may refuse."""
        if len(walk.leaves) > self._room:
            raise _TooLargeError
        mark = _Mark(walk)
        try:
            if isinstance(value, (set, frozenset)) and not all(map(_has_stable_text, value)):
                raise UnidentifiedError("a set of objects has no order")
            look(walk, value)
        except (OwnCodeError, _TooLargeError):
            raise
        except Exception:  # objects of packages may do anything when they are looked at
            mark.roll_back(walk)
            self._pass_over(walk, value)

    def _pass_over(self, walk: Walk, value: object) -> None:
        walk.leaves += (_OTHER, walk.named(type(value)))
        self.passed_over.add(id(value))
        if is_packaged(type(value)):
            walk.seeds.add(type(value))


class _Mark:
    """How far a walk is, to undo what it did since."""

    __slots__ = ("_depth", "_lists", "_maps")

    def __init__(self, walk: Walk) -> None:
        self._lists = list(map(len, walk.lists()))
        self._maps = list(map(len, walk.maps()))
        self._depth = walk.depth

    def roll_back(self, walk: Walk) -> None:
        for held, length in zip(walk.lists(), self._lists, strict=True):
            del held[length:]
        for known, length in zip(walk.maps(), self._maps, strict=True):
            while len(known) > length:
                known.popitem()
        walk.depth = self._depth


def _has_stable_text(item: object) -> bool:
    return type(item) in ATOMS or isinstance(item, type)
