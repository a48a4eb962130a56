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
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from modcache._identity.contents import contents_without_versions, version_of, watched_digest
from modcache._identity.digest import difference, digest_of, name_of_tensor
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.known import Known, Recognized, Recognizer, known_of
from modcache._identity.observed import codes_of
from modcache._identity.records import Records, same_leaves
from modcache._identity.scripted import code_of_scripted
from modcache._identity.snapshot import snapshot_of
from modcache._identity.state_snapshot import snapshot_of_state
from modcache._identity.state_walk import StateWalk
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
    module inside. ``is_plain``: a call in which nothing requires grad may be a plain hit.
    ``functions``: by name, weak references to those of the module's class whose calls the compiled
    part may begin (``_call/evaluation.py``); ``class_name`` is for its messages then. It reads
    these, ``known``, ``is_plain`` and ``watch_address``.
    """

    def __init__(self, *, is_wrapper: bool = False) -> None:
        self.is_wrapper = is_wrapper
        self.known: Known | None = None  # the identified one, or else the named one
        self._identified = Recognizer()
        self._named = Recognizer()  # of calls whose scope the caller named
        self.watch: Any = torch.classes.cache.Watch()
        self.watch_address: int = self.watch.address()
        self.graph_patterns: frozenset[GradPattern] = frozenset()
        self.is_plain = not is_wrapper
        self.functions: dict[str, weakref.ref[types.FunctionType]] = {}
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
        self._followed: tuple[str, set[types.CodeType]] = ("", set())  # with its fingerprint
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

    def followed(self, fingerprint: str, look: Callable[[], SeenState]) -> set[types.CodeType]:
        """Returns the code that a look at the module with this fingerprint follows.

        ``look``: looks at it, if that code is not known yet.
        """
        known, codes = self._followed
        if known != fingerprint:
            codes = set(codes_of(look().walk))
            self._followed = (fingerprint, codes)
        return codes

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
        self.is_plain = not self.is_wrapper and _PLAIN_PATTERNS.isdisjoint(self.graph_patterns)

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
