# SPDX-License-Identifier: Apache-2.0
"""Modules that are recognized by snapshots, without another look in full."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from modcache._identity.records import same_objects
from modcache._identity.walk import Outline, Walk

if TYPE_CHECKING:
    from modcache._guards import Snapshot

# Looks in full before a snapshot is made. Each snapshot that did not hold for long doubles them.
_PATIENCE, _MOST_PATIENCE = 2, 1024
_LONG = 16  # looks that a snapshot must serve, or else
_LONG_S = 1.0  # the time, as plain hits do not count as looks


class Known(NamedTuple):
    """A module that can be recognized: while its ``snapshots`` hold, it has this ``structure``.

    If its tensors have the digest ``weights``, it has this ``fingerprint``. Both are "" until they
    are first needed, and always where the caller named the scope. The compiled part reads the
    fields by their places.
    """

    snapshots: tuple[Snapshot, ...]  # of the module, and of the installed packages that it enters
    structure: str
    weights: str
    fingerprint: str
    outline: Outline  # of what the snapshots were made from

    def tensors(self) -> list[torch.Tensor] | None:
        """The module's tensors, in order; None: a snapshot no longer holds."""
        found: list[torch.Tensor] = []
        for snapshot in self.snapshots:
            tensors = snapshot.tensors()
            if tensors is None:
                return None
            found += tensors
        return found


class Recognized(NamedTuple):
    """A module for which a snapshot holds, and its tensors."""

    known: Known
    tensors: list[torch.Tensor]


def known_of(snapshots: list[Snapshot], structure: str, walk: Walk) -> Known | None:
    known = Known(tuple(snapshots), structure, "", "", Outline(walk))
    return known if same_objects(known.tensors() or (), walk.tensors) else None


class Recognizer:
    """Decides when a snapshot of a module is worth making, and keeps the last one."""

    def __init__(self) -> None:
        self.known: Known | None = None
        self._patience = _PATIENCE
        self._known_since_s = 0.0
        self._looks_in_full = 0
        self._recognized = 0

    def latest(self, make: Callable[[], Known | None]) -> Recognized | None:
        known = self.known
        if known is not None:
            tensors = known.tensors()
            if tensors is not None:
                self._recognized += 1
                return Recognized(known, tensors)
            self.known = None
            age_s = time.monotonic() - self._known_since_s
            is_long = self._recognized >= _LONG or age_s >= _LONG_S
            self._patience = _PATIENCE if is_long else min(2 * self._patience, _MOST_PATIENCE)
        self._looks_in_full += 1
        if self._looks_in_full > self._patience:
            self._looks_in_full = self._recognized = 0
            self._patience = min(2 * self._patience, _MOST_PATIENCE)  # until it proves its worth
            self.known = make()
            self._known_since_s = time.monotonic()
        return None
