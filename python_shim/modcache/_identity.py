# SPDX-License-Identifier: Apache-2.0
"""Who an eager module is: its fingerprint, kept up to date cheaply from call to call.

State is kept here, by the module's address and a weak reference; nothing is stored on the module,
so copying and pickling it do not change, and nothing here keeps it alive. May be used from any
thread and in forked children.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from modcache._bypass import untraced
from modcache._contents import contents_without_versions
from modcache._digest import difference, digest_of, name_of_tensor
from modcache._kinds import UnidentifiedError
from modcache._observed import Followed
from modcache._records import Records, same_objects
from modcache._scripted import code_of_scripted
from modcache._snapshot import snapshot_of
from modcache._walk import Walk, same_leaves
from modcache._wrappers import may_be_transparent

if TYPE_CHECKING:
    from modcache._guards import Snapshot

# Looks in full before a snapshot is made; doubled by each that did not serve long.
_PATIENCE, _MOST_PATIENCE = 2, 1024
_LONG = 16  # looks


class Sight:
    """What one look at a module found.

    ``weights`` is the library's digest of the tensors; empty when they were not looked into.
    ``versions`` has identity and version counter of each tensor, once they are noted, and
    ``contents`` digests of those that have no such counter.
    """

    def __init__(self, walk: Walk, weights: str, fingerprint: str) -> None:
        self.walk = walk
        self.weights = weights
        self.fingerprint = fingerprint
        self.versions: list[tuple[int, int | None]] = []
        self.contents: dict[int, str] = {}

    def note_versions(self) -> Sight:
        self.versions = [(id(tensor), _version_of(tensor)) for tensor in self.walk.tensors]
        self.contents = contents_without_versions(self.walk.tensors)
        return self


class Recognized(NamedTuple):
    """A module found to be what a snapshot says, and its tensors."""

    known: Known
    tensors: list[torch.Tensor]


class GradPattern(NamedTuple):
    """Who requires grad in a call under grad mode; nobody otherwise."""

    module: int  # hashed flags; 0: none
    inputs: tuple[bool, ...]


class Both:
    """Two snapshots in one: of a module, and of the installed packages that it enters."""

    def __init__(self, of_module: Snapshot, of_packages: Snapshot) -> None:
        self._of_module = of_module
        self._of_packages = of_packages

    def tensors(self) -> list[torch.Tensor] | None:
        tensors = self._of_module.tensors()
        more = None if tensors is None else self._of_packages.tensors()
        return None if tensors is None or more is None else tensors + more


class Known(NamedTuple):
    """A module that can be recognized: while ``snapshot`` holds, it has this ``structure``.

    With the digest ``weights`` of its tensors, it has this ``fingerprint``; both are empty before
    that was asked.
    """

    snapshot: Snapshot | Both
    structure: str
    weights: str = ""
    fingerprint: str = ""


class Refusal(NamedTuple):
    """Why the last result was not kept; explain() asks."""

    cause: str  # "grad", "impure", "type"; empty: it was kept
    message: str
    scope: str  # of that call


class ModuleState:
    """What is remembered about one module.

    ``graph_patterns`` are those under which its last result required grad. ``known`` is replaced as
    a whole, and may be read without a lock. ``is_wrapper``: it may be identified as the module
    inside.
    """

    def __init__(self, *, is_wrapper: bool = False) -> None:
        self.is_wrapper = is_wrapper
        self.known: Known | None = None
        self._patience = _PATIENCE
        self._looks_in_full = 0
        self._recognized = 0
        self.watch = int(torch.ops.cache._watch())
        self.graph_patterns: frozenset[GradPattern] = frozenset()
        self.refusal = Refusal("", "", "")
        self.renew_lock()
        self._records = Records()
        self._leaves: list[object] = []
        self._structure = ""
        self._followed = Followed()
        self._generation = 0  # of the structure
        self._scripted = ((-1, ""), "")  # of which generation and weights, and what was found

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def look(self, module: torch.nn.Module, *, with_weights: bool = True) -> Sight:
        """Looks at the module as it is now; without weights, at what of it can be seen.

        Raises:
            UnidentifiedError: something in it cannot be hashed.
        """
        with self._lock:
            self._records.forget_the_dead()
            walk = Walk(module, self._records, is_tolerant=not with_weights)
            if not with_weights:
                return Sight(walk, "", "")
            self._note_leaves(walk)
            structure, generation = self._structure, self._generation
        weights = self._digest_of(walk.tensors)
        text = f"{structure}/{weights}"
        if walk.scripted:
            text += f"/{self._code_of_scripted(walk, (generation, weights))}"
        return Sight(walk, weights, _digest_of_text(text))

    def _note_leaves(self, walk: Walk) -> None:
        if not self._structure or not same_leaves(walk.leaves, self._leaves):
            self._structure = digest_of(walk.leaves)
            self._leaves = walk.leaves
            self._generation += 1

    def _digest_of(self, tensors: list[torch.Tensor]) -> str:
        try:
            return str(torch.ops.cache._tensors_digest(self.watch, tensors))
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).split("\n", 1)[0].removeprefix("modcache: ")
            raise UnidentifiedError(reason) from None

    def recognize(self, module: torch.nn.Module) -> Recognized | None:
        """The module, unchanged but perhaps for its tensors; None: look at it in full."""
        known = self.known
        if known is not None:
            tensors = known.snapshot.tensors()
            if tensors is not None:
                self._recognized += 1
                return Recognized(known, tensors)
            self.known = None
            is_long = self._recognized >= _LONG
            self._patience = _PATIENCE if is_long else min(2 * self._patience, _MOST_PATIENCE)
        self._looks_in_full += 1
        if self._looks_in_full > self._patience:
            self._looks_in_full = self._recognized = 0
            self._patience = min(2 * self._patience, _MOST_PATIENCE)  # until it proves its worth
            self._make_known(module)
        return None

    def _make_known(self, module: torch.nn.Module) -> None:
        # Whatever cannot be written down is looked at in full, which is also where mistakes show.
        with self._lock, contextlib.suppress(Exception):
            walk = Walk(module, self._records)
            snapshot = snapshot_of(module, walk, self._records)
            # What is written down has to be what this second walk saw.
            walk = Walk(module, self._records)
            self._note_leaves(walk)
            if snapshot is None:
                return
            both: Snapshot | Both = snapshot
            if walk.packages is not None:
                if walk.packages.snapshot is None:
                    return
                both = Both(snapshot, walk.packages.snapshot)
            if same_objects(both.tensors() or (), walk.tensors):
                self.known = Known(both, self._structure)

    def followed(self, sight: Sight) -> set[types.CodeType]:
        """The code that this look at the module has followed."""
        return self._followed.codes(sight.fingerprint, sight.walk)

    def fingerprint_of(self, seen: Recognized) -> str:
        """Raises UnidentifiedError: a tensor cannot be hashed."""
        known = seen.known
        weights = self._digest_of(seen.tensors)
        latest = self.known
        if latest is not None and latest.snapshot is known.snapshot and latest.weights == weights:
            return latest.fingerprint
        fingerprint = _digest_of_text(f"{known.structure}/{weights}")
        self.known = known._replace(weights=weights, fingerprint=fingerprint)
        return fingerprint

    def _code_of_scripted(self, walk: Walk, seen: tuple[int, str]) -> str:
        """What their methods are: that changes only together with what was seen otherwise."""
        known, code = self._scripted
        if known != seen:
            code = code_of_scripted(walk.scripted)
            self._scripted = (seen, code)
        return code

    def tensors_in_reach(self, module: torch.nn.Module) -> list[torch.Tensor]:
        """Every tensor that can be found, also where something else cannot be hashed."""
        with self._lock:
            try:
                return Walk(module, self._records, is_tolerant=True).tensors
            except UnidentifiedError:
                return []

    def note_graph(self, pattern: GradPattern, requires_grad: bool) -> None:
        if requires_grad:
            self.graph_patterns |= {pattern}
        elif pattern in self.graph_patterns:
            self.graph_patterns -= {pattern}

    def forget_weights(self) -> None:
        """The next look reads every byte of the tensors."""
        torch.ops.cache._refresh(self.watch)


def change_between(module: torch.nn.Module, before: Sight, after: Sight) -> str:
    """A clause that names what a run changed in the module; empty when it changed nothing."""
    clause = difference(before.walk, after.walk)
    if clause:
        return clause
    after.note_versions()
    if before.weights:
        changed = before.weights != after.weights
    else:
        changed = before.versions != after.versions
    if not changed and before.contents == after.contents:
        return ""
    for index, (was, now) in enumerate(zip(before.versions, after.versions, strict=False)):
        if was != now or before.contents.get(index) != after.contents.get(index):
            return f"{name_of_tensor(module, after.walk, index)} changed"
    return f"a tensor of {type(module).__qualname__} changed"


def _digest_of_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _version_of(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


# By a module's address.
states: dict[int, tuple[weakref.ref[torch.nn.Module], ModuleState]] = {}
_states_lock = threading.Lock()


def state_of(module: torch.nn.Module) -> ModuleState:
    """The state of ``module``, made at its first use."""
    entry = states.get(id(module))
    if entry is not None and entry[0]() is module:
        return entry[1]
    with _states_lock:
        entry = states.get(id(module))
        if entry is not None and entry[0]() is module:
            return entry[1]
        state = ModuleState(is_wrapper=may_be_transparent(module))
        forget = Forget(states, id(module), torch.ops.cache._unwatch, state.watch)
        states[id(module)] = (weakref.ref(module, forget), state)
        return state


def forget_weights_of(module: torch.nn.Module) -> None:
    """The next look at ``module``, if there was one, reads every byte of its tensors."""
    entry = states.get(id(module))
    if entry is not None and entry[0]() is module:
        with untraced():
            entry[1].forget_weights()


class Forget:
    """Called when a module dies, in the middle of anything: takes no lock of this package's own.

    It has all that it uses: at interpreter exit the globals of this file may be None already, and
    torch gone. Then there is nothing left to forget.

    Args:
        entries: whose values begin with a weak reference, by the module's address.
        address: the module's.
        end: is called with ``number``.
    """

    def __init__(
        self, entries: dict[int, Any], address: int, end: Callable[[int], None], number: int
    ) -> None:
        self._entries = entries
        self._address = address
        self._end = end
        self._number = number

    def __call__(self, reference: weakref.ref[torch.nn.Module]) -> None:
        try:
            entry = self._entries.get(self._address)
            if entry is not None and entry[0] is reference:
                self._entries.pop(self._address, None)
            self._end(self._number)
        except Exception:
            pass


def _renew_locks_in_child() -> None:
    global _states_lock
    _states_lock = threading.Lock()
    for _, state in states.values():
        state.renew_lock()


os.register_at_fork(after_in_child=_renew_locks_in_child)
