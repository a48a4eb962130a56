# SPDX-License-Identifier: Apache-2.0
"""How a walk reads values that installed packages hold in this process.

Many of them cannot be hashed and do not matter (locks, handles, memories of a package). A value
that cannot be hashed counts by its type, and in a snapshot by its identity. This does not apply to
code of the user's that a package holds: if that cannot be identified, neither can the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modcache._code.names import is_packaged
from modcache._code.tokens import ATOMS
from modcache._identity.kinds import Mark, StoppedError, UnidentifiedError

if TYPE_CHECKING:
    from modcache._identity.walk import Walk

_OTHER = Mark("other")
_MOST_LEAVES = 4096  # in one value


class OwnCodeError(UnidentifiedError):
    """Code of the user's, reached through a package, that cannot be identified."""


class _TooLargeError(StoppedError):
    """A value has more leaves than a lenient walk reads."""


class Lenient:
    """What one walk over values of packages keeps."""

    def __init__(self) -> None:
        self.passed_over: set[int] = set()  # ids of values that could not be hashed
        self._room = 0

    def whole_value(self, walk: Walk, value: object) -> None:
        """Reads a value as the code of a package would."""
        self._room = len(walk.leaves) + _MOST_LEAVES
        mark = _Mark(walk)
        try:
            walk.value(value)
        except _TooLargeError:
            mark.roll_back(walk)
            self._pass_over(walk, value)

    def value(self, walk: Walk, look: Any, value: Any) -> None:
        """Calls ``look(walk, value)``; if that refuses, passes the value over."""
        if len(walk.leaves) > self._room:
            raise _TooLargeError
        mark = _Mark(walk)
        try:
            if isinstance(value, (set, frozenset)) and not all(map(_has_stable_text, value)):
                raise UnidentifiedError("a set of objects has no order")
            look(walk, value)
        except (OwnCodeError, StoppedError):
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
    """The state of a walk at one moment, to which it can be rolled back."""

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
