# SPDX-License-Identifier: Apache-2.0
"""The last part of a walk: the installed packages that it entered.

This part depends only on where packages were entered. So the process keeps it, and all modules that
enter at the same places share it. A snapshot says whether it still holds. Every walk reads the
values that change often, or that no snapshot can express.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from modcache._code.reads import Code, Read
from modcache._identity.digest import Part, digest_of
from modcache._identity.lenient import Lenient
from modcache._identity.records import Records
from modcache._installed.distributions import is_news, look_again
from modcache._installed.seeds import Seeds
from modcache._installed.traversal import PackageTraversal

if TYPE_CHECKING:
    from modcache._guards import Snapshot
    from modcache._identity.walk import Walk

_MOST_ROUNDS = 16
_MOST_PARTS = 64
_OFTEN = 2  # after so many changes of a value every walk reads it


class Entered:
    """The part of a walk about packages."""

    def __init__(self, part: Part, tensors: list[torch.Tensor], snapshot: Snapshot | None) -> None:
        self.part = part
        self.text = ""  # digest of the values that every walk reads
        self.leaves: list[list[object]] = []  # leaves of the walks over values
        self.tensors = tensors
        self.scripted: list[torch.jit.ScriptModule] = []
        self.snapshot = snapshot  # None: none, or it does not cover all values


# snapshot.py sets the function that makes a snapshot of a walk over packages, and returns the reads
# that it cannot express.
Guarding = Callable[[Code, list[Read], "Walk"], "tuple[Snapshot | None, list[Read]]"]
_guarding: list[Guarding] = []
# Walks enter packages, and packages hold values to walk over. So a walk passes its own class on.
NewWalk = Callable[[None, Records], "Walk"]


def guard_with(guarding: Guarding) -> None:
    _guarding[:] = [guarding]


def entered(seeds: Seeds, new_walk: NewWalk) -> Entered:
    """Identifies the packages that are entered at these places. ``new_walk``: the class of walks.

    Raises:
        UnidentifiedError: a package holds code of the user's that cannot be identified.
    """
    with _lock:
        if is_news():
            for each in _parts.values():
                each.is_due = True
        key = seeds.key()
        known = _parts.get(key)
        if known is None or not known.is_current():
            look_again()
            known = _parts[key] = _Known(seeds.copy(), known, new_walk)
            if len(_parts) > _MOST_PARTS:
                _parts.popitem(last=False)
        _parts.move_to_end(key)
        return known.now()


class _Known:
    """One part, as the last look found it."""

    def __init__(self, seeds: Seeds, before: _Known | None, new_walk: NewWalk) -> None:
        self._new_walk = new_walk
        self.is_due = False
        self._seeds = seeds
        self._changes: dict[object, int] = before._changes if before is not None else {}
        self._found: dict[object, list[object]] = {}  # the leaves of each read
        self._snapshot: Snapshot | None = None
        self._look_in_rounds()

    def is_current(self) -> bool:
        if self.is_due:
            self.is_due = False
            if self._code.distributions != self._code.distributions_now():
                return False
        if self._snapshot is not None:
            tensors = self._snapshot.tensors()
            if tensors is not None:
                self._tensors = tensors
                return True
            self._snapshot = None
        if not self._code.is_current():
            return False
        return self._look_at_values()

    def now(self) -> Entered:
        held = Entered(self._part, self._tensors, None if self._loose else self._snapshot)
        held.leaves.append(self._leaves)
        if self._loose:
            walk = self._walk_over(self._loose)
            held.leaves.append(walk.leaves)
            held.text = digest_of(walk.leaves)
            held.tensors = [*held.tensors, *walk.tensors]
            held.scripted = walk.scripted
        return held

    def _look_in_rounds(self) -> None:
        """Reads values, which hold code that leads to further values, until nothing is new."""
        reads: list[Read] = []
        seen: set[object] = set()
        seeds = self._seeds.copy()
        traversal = PackageTraversal()
        for _ in range(_MOST_ROUNDS):
            key = seeds.key()
            traversal.add(seeds)
            self._code = traversal.finish()
            news = [read for read in self._code.reads if _key_of(read) not in seen]
            seen.update(map(_key_of, news))
            reads += news
            seeds.add_all(self._walk_over(news).seeds)
            if seeds.key() == key:
                break
        kept = set(map(_key_of, self._code.reads))
        self._all_seeds, self._reads = seeds, [read for read in reads if _key_of(read) in kept]
        self._write_down(self._walk_over(reads, self._found))

    def _look_at_values(self) -> bool:
        """Reads the values again. False: they lead to code that was not followed."""
        found: dict[object, list[object]] = {}
        walk = self._walk_over(self._reads, found)
        seeds = self._all_seeds.copy()
        seeds.add_all(walk.seeds)
        if seeds.key() != self._all_seeds.key():
            return False
        for key, leaves in found.items():
            if not _are_same(leaves, self._found.get(key, [])):
                self._changes[key] = self._changes.get(key, 0) + 1
        self._found = found
        self._write_down(walk)
        return True

    def _write_down(self, walk: Walk) -> None:
        self._loose = [
            read for read in self._reads if self._changes.get(_key_of(read), 0) >= _OFTEN
        ]
        fixed = [read for read in self._reads if read not in self._loose]
        if self._loose or walk.scripted:
            walk = self._walk_over(fixed)
        snapshot: Snapshot | None = None
        if _guarding:
            with contextlib.suppress(Exception):
                snapshot, loose = _guarding[0](self._code, fixed, walk)
                if loose:
                    self._loose += loose
                    fixed = [read for read in fixed if read not in loose]
                    walk = self._walk_over(fixed)
                    snapshot, _ = _guarding[0](self._code, fixed, walk)
        distributions = list(self._code.distributions.values())
        digest = digest_of([self._code, *distributions, *walk.leaves])
        code = self._code
        self._part = Part(digest, code.mentions_training, code.mentions_backend, distributions)
        self._tensors, self._snapshot, self._leaves = walk.tensors, snapshot, walk.leaves

    def _walk_over(
        self, reads: list[Read], found: dict[object, list[object]] | None = None
    ) -> Walk:
        """Makes a lenient walk over values. ``found`` gets the leaves of each value."""
        walk = self._new_walk(None, package_records)
        walk.lenient = Lenient()
        for read in reads:
            start = len(walk.leaves)
            walk.leaves.append(read.name)
            walk.lenient.whole_value(walk, read.value())
            if found is not None:
                found[_key_of(read)] = walk.leaves[start:]
        return walk


def _are_same(now: list[object], before: list[object]) -> bool:
    return now == before and list(map(type, now)) == list(map(type, before))


def _key_of(read: Read) -> object:
    return read.kind, id(read.owner()), read.path


_lock = threading.RLock()
_parts: OrderedDict[Any, _Known] = OrderedDict()
package_records = Records()


def _renew_lock_in_child() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock_in_child)
