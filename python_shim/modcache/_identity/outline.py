# SPDX-License-Identifier: Apache-2.0
"""What is kept of a walk for a later comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcache._identity.walk import Walk


def owner_at(owners: list[tuple[int, str, str]], index: int) -> tuple[str, str] | None:
    """Returns the class and attribute that the leaf at ``index`` belongs to."""
    found = None
    for start, cls, name in owners:
        if start > index:
            break
        found = (cls, name)
    return found


class Outline:
    """What a walk found, without anything that keeps it alive, for a later comparison."""

    def __init__(self, walk: Walk) -> None:
        self.leaves = walk.leaves
        self._own_leaves = walk.own_leaves()
        self._owners = walk.owners
        self.is_in_training: bool | None = None  # any part of the module; None: not asked yet

    def own_leaves(self) -> list[object]:
        return self._own_leaves

    def owner_at(self, index: int) -> tuple[str, str] | None:
        return owner_at(self._owners, index)
