# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of an eager module, kept up to date cheaply from call to call.

The state is kept here, by the module's address and a weak reference. Nothing is stored on the
module, so copying and pickling it work as before, and nothing here keeps it alive. Any thread and
forked children may use this.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import weakref
from typing import Any, NamedTuple

import torch

from modcache._identity.contents import (
    contents_without_versions,
    version_of,
    versions_of,
    watched_digest,
)
from modcache._identity.digest import difference, digest_of, name_of_tensor
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.known import Known, Recognized, Recognizer, known_of
from modcache._identity.records import Records, same_leaves, same_objects
from modcache._identity.scripted import code_of_scripted
from modcache._identity.snapshot import snapshot_of
from modcache._identity.state_walk import StateWalk, snapshot_of_state
from modcache._identity.walk import Walk
from modcache._identity.wrappers import may_be_transparent
from modcache._library.tracing import untraced

_refresh_watch: Any = torch.classes.cache.Watch.refresh


class SeenState:
    """The outcome of one look at a module.

    ``weights`` is the library's digest of the tensors; "" if they were not read. Once noted,
    ``versions`` has identity and version counter of each tensor, and ``contents`` has digests of
    those without such a counter.
    """

    def __init__(self, walk: Walk, weights: str, fingerprint: str) -> None:
        self.walk = walk
        self.weights = weights
        self.fingerprint = fingerprint
        self.versions: list[tuple[int, int | None]] = []
        self.contents: dict[int, str] = {}

    def note_versions(self) -> SeenState:
        self.versions = [(id(tensor), version_of(tensor)) for tensor in self.walk.tensors]
        self.contents = contents_without_versions(self.walk.tensors)
        return self


class GradPattern(NamedTuple):
    """Which tensors require grad in a call under grad mode; outside of it, none."""

    module: int  # hashed flags; 0: none
    inputs: tuple[bool, ...]


# The patterns of calls in which neither module nor input requires grad.
_PLAIN_PATTERNS = frozenset({GradPattern(0, ()), GradPattern(0, (False,))})


class Refusal(NamedTuple):
    """The reason why the last result was not kept, for ``explain``."""

    cause: str  # "grad", "impure", "type"; empty: it was kept
    message: str
    scope: str  # the scope of that call


NOT_REFUSED = Refusal("", "", "")


class ModuleState:
    """The state of one module.

    ``graph_patterns`` are those under which its last result required grad. ``known`` is replaced as
    a whole, and may be read without a lock. ``is_wrapper``: the module may be identified as the
    module inside. ``plain_watch``: the address of ``watch``; 0 where a call in which nothing
    requires grad may not be a plain hit. ``functions``: by the method's name, records of what runs
    (``record_function`` in ``_call/evaluation.py``). The compiled part reads these, ``known`` and
    ``plain_watch``, and begins runs with ``class_name`` for their messages.
    """

    def __init__(self, *, is_wrapper: bool = False) -> None:
        self.is_wrapper = is_wrapper
        self.known: Known | None = None  # the identified one, or else the named one
        self._identified = Recognizer()
        self._named = Recognizer()  # of calls whose scope the caller named
        self.watch: Any = torch.classes.cache.Watch()
        self._watch_address: int = self.watch.address()
        self.graph_patterns: frozenset[GradPattern] = frozenset()
        self.plain_watch = 0 if is_wrapper else self._watch_address
        self.functions: dict[str, tuple[Any, ...]] = {}
        self.class_name = ""
        self.refusal = NOT_REFUSED
        self.look_s = 0.0  # how long the last look in full took
        self.copies = 0  # fingerprints that results were stored under for the first time
        self.has_warned_of_copies = False
        self.was_in_training = False  # a result had a graph since the first of them
        self.renew_lock()
        self._records = Records()
        self._leaves: list[object] = []
        self._structure = ""
        self._generation = 0  # grows with each change of the structure
        self._scripted = ((-1, ""), "")  # (generation, weights), and the code found for them

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def look(self, module: torch.nn.Module, *, with_weights: bool = True) -> SeenState:
        """Looks at the module as it is now. Without weights, it looks at values alone.

        Raises:
            UnidentifiedError: something in it cannot be hashed.
        """
        with self._lock:
            self._records.forget_the_dead()
            if not with_weights:
                return SeenState(StateWalk(module, self._records), "", "")
            begun_s = time.monotonic()
            walk = Walk(module, self._records)
            self.look_s = time.monotonic() - begun_s
            self._note_leaves(walk)
            structure, generation = self._structure, self._generation
        weights = watched_digest(self.watch, walk.tensors)
        text = f"{structure}/{weights}"
        if walk.scripted:
            text += f"/{self._code_of_scripted(walk, (generation, weights))}"
        return SeenState(walk, weights, _digest_of_text(text))

    def _note_leaves(self, walk: Walk) -> None:
        if not self._structure or not same_leaves(walk.leaves, self._leaves):
            self._structure = digest_of(walk.leaves)
            self._leaves = walk.leaves
            self._generation += 1

    def recognize(self, module: torch.nn.Module, *, is_named: bool = False) -> Recognized | None:
        """Recognizes the module if at most its tensors changed; None: look at it in full.

        ``is_named``: the caller named the scope, so that only values count, and no code.
        """
        if is_named:
            found = self._named.latest(lambda: self._made_known_by_values(module))
        else:
            found = self._identified.latest(lambda: self._made_known(module))
        self.known = self._identified.known or self._named.known
        return found

    def known_for(self, *, is_named: bool) -> Known | None:
        return (self._named if is_named else self._identified).known

    def _made_known(self, module: torch.nn.Module) -> Known | None:
        # A module without a snapshot is looked at in full, and that look reports mistakes.
        with self._lock, contextlib.suppress(Exception):
            walk = Walk(module, self._records)
            snapshot = snapshot_of(module, walk, self._records)
            # The snapshot counts only if this second walk saw the same.
            walk = Walk(module, self._records)
            self._note_leaves(walk)
            if snapshot is None:
                return None
            snapshots = [snapshot]
            if walk.packages is not None:
                if walk.packages.snapshot is None:
                    return None
                snapshots.append(walk.packages.snapshot)
            return known_of(snapshots, self._structure, walk)
        return None

    def _made_known_by_values(self, module: torch.nn.Module) -> Known | None:
        with self._lock, contextlib.suppress(Exception):
            walk = StateWalk(module, self._records)
            if snapshot := snapshot_of_state(module, walk, self._records):
                return known_of([snapshot], "", walk)
        return None

    def fingerprint_of(self, seen: Recognized) -> str:
        """Raises UnidentifiedError: a tensor cannot be hashed."""
        known = seen.known
        weights = watched_digest(self.watch, seen.tensors)
        latest = self._identified.known
        if latest is not None and latest.snapshots is known.snapshots and latest.weights == weights:
            return latest.fingerprint
        fingerprint = _digest_of_text(f"{known.structure}/{weights}")
        self.known = known._replace(weights=weights, fingerprint=fingerprint)
        self._identified.known = self.known
        return fingerprint

    def _code_of_scripted(self, walk: Walk, seen: tuple[int, str]) -> str:
        """Identifies the methods of scripted modules, anew only if structure or weights changed."""
        known, code = self._scripted
        if known != seen:
            code = code_of_scripted(walk.scripted)
            self._scripted = (seen, code)
        return code

    def tensors_in_reach(self, module: torch.nn.Module, *, is_named: bool) -> list[torch.Tensor]:
        """Finds every tensor that it can, also if something else cannot be hashed."""
        with self._lock:
            try:
                if is_named:
                    return StateWalk(module, self._records).tensors
                return Walk(module, self._records, is_tolerant=True).tensors
            except UnidentifiedError:
                return []

    def note_graph(self, pattern: GradPattern, requires_grad: bool) -> None:
        if requires_grad:
            self.was_in_training |= self.copies > 0 and pattern.module != 0
            self.graph_patterns |= {pattern}
        elif pattern in self.graph_patterns:
            self.graph_patterns -= {pattern}
        is_plain = not self.is_wrapper and _PLAIN_PATTERNS.isdisjoint(self.graph_patterns)
        self.plain_watch = self._watch_address if is_plain else 0

    def forget_weights(self) -> None:
        """Makes the next look read every byte of the tensors."""
        _refresh_watch(self.watch)


def change_between(module: torch.nn.Module, before: SeenState, after: SeenState) -> str:
    """Returns a clause that names what a run changed in the module; "" if it changed nothing."""
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


def unchanging(state: ModuleState, seen: Recognized, fingerprint: str) -> Unchanging | None:
    """Returns what tells after a run whether the module changed since ``seen``.

    ``fingerprint`` "": the caller named the scope. None: a look in full is needed.
    """
    now = state.known_for(is_named=not fingerprint)
    if now is None or now.snapshots is not seen.known.snapshots:
        return None
    if fingerprint and now.fingerprint != fingerprint:
        return None
    if any(map(torch.Tensor.is_inference, seen.tensors)):  # they count no versions
        return None
    return Unchanging(state, seen, now.weights if fingerprint else "")


class Unchanging:
    """A module that a snapshot recognized, around one run of it. A second look in full is spared.

    Its tensors have to count versions, so that a write to one of them can be named.
    """

    def __init__(self, state: ModuleState, seen: Recognized, weights: str) -> None:
        self.outline = seen.known.outline
        self._state = state
        self._seen = seen
        self._weights = weights  # "": the caller named the scope
        self._versions = [tensor._version for tensor in seen.tensors]

    def change_in(self, module: torch.nn.Module) -> str:
        """Returns a clause that names what changed since; "" for nothing.

        Raises:
            UnidentifiedError: something in the module cannot be hashed any more.
        """
        now = self._seen.known.tensors()
        if now is not None and same_objects(now, self._seen.tensors) and self._has_contents(now):
            return ""
        after = self._state.look(module, with_weights=bool(self._weights))
        if clause := difference(self.outline, after.walk):
            return clause
        if self._weights and after.weights == self._weights:  # an equal tensor in one's place
            return ""
        tensors = after.walk.tensors
        for index, (was, version) in enumerate(
            zip(self._seen.tensors, self._versions, strict=True)
        ):
            if index >= len(tensors) or tensors[index] is not was or version_of(was) != version:
                return f"{name_of_tensor(module, after.walk, index)} changed"
        return f"a tensor of {type(module).__qualname__} changed" if self._weights else ""

    def _has_contents(self, tensors: list[torch.Tensor]) -> bool:
        if self._weights:
            return watched_digest(self._state.watch, tensors) == self._weights
        return versions_of(tensors) == self._versions


def _digest_of_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# The states, by the modules' addresses.
states: dict[int, tuple[weakref.ref[torch.nn.Module], ModuleState]] = {}
_states_lock = threading.Lock()


def state_of(module: torch.nn.Module) -> ModuleState:
    """Returns the state of ``module``, which is made at its first use."""
    state = _known_state_of(module)
    if state is not None:
        return state
    with _states_lock:
        state = _known_state_of(module)
        if state is None:
            state = ModuleState(is_wrapper=may_be_transparent(module))
            forget = Forget(states, id(module))
            states[id(module)] = (weakref.ref(module, forget), state)
        return state


def _known_state_of(module: torch.nn.Module) -> ModuleState | None:
    entry = states.get(id(module))
    return entry[1] if entry is not None and entry[0]() is module else None


def forget_weights_of(module: torch.nn.Module) -> None:
    """Makes the next look at ``module``, if it has a state, read every byte of its tensors."""
    state = _known_state_of(module)
    if state is not None:
        with untraced():
            state.forget_weights()


class Forget:
    """Removes the entry of a module that was freed.

    It is called at any point of the program, so it takes no lock of this package. It holds all that
    it uses, since at interpreter exit the globals of this file may be None already, and torch
    unloaded. Then nothing has to be removed.

    Args:
        entries: tuples that begin with a weak reference, by the modules' addresses.
        address: the module's address.
    """

    def __init__(self, entries: dict[int, Any], address: int) -> None:
        self._entries = entries
        self._address = address

    def __call__(self, reference: weakref.ref[torch.nn.Module]) -> None:
        try:
            entry = self._entries.get(self._address)
            if entry is not None and entry[0] is reference:
                self._entries.pop(self._address, None)
        except Exception:
            pass


def _renew_locks_in_child() -> None:
    global _states_lock
    _states_lock = threading.Lock()
    for _, state in states.values():
        state.renew_lock()


os.register_at_fork(after_in_child=_renew_locks_in_child)
