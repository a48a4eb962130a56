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
import weakref
from typing import NamedTuple

import torch

from modcache._bypass import untraced
from modcache._contents import contents_without_versions
from modcache._digest import difference, digest_of, name_of_tensor
from modcache._kinds import UnidentifiedError
from modcache._scripted import code_of_scripted
from modcache._walk import Records, Walk, same_leaves


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


class GradPattern(NamedTuple):
    """Who requires grad in a call under grad mode; nobody otherwise."""

    module: int  # hashed flags; 0: none
    inputs: tuple[bool, ...]


class Refusal(NamedTuple):
    """Why the last result was not kept; explain() asks."""

    cause: str  # "grad", "impure", "type"; empty: it was kept
    message: str
    scope: str  # of that call


class ModuleState:
    """What is remembered about one module.

    ``graph_patterns`` are those under which its last result required grad.
    """

    def __init__(self) -> None:
        self.watch = int(torch.ops.cache._watch())
        self.graph_patterns: frozenset[GradPattern] = frozenset()
        self.refusal = Refusal("", "", "")
        self.renew_lock()
        self._records = Records()
        self._leaves: list[object] = []
        self._structure = ""
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
            if not self._structure or not same_leaves(walk.leaves, self._leaves):
                self._structure = digest_of(walk.leaves)
                self._leaves = walk.leaves
                self._generation += 1
            structure, generation = self._structure, self._generation
        try:
            weights = str(torch.ops.cache._tensors_digest(self.watch, walk.tensors))
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).split("\n", 1)[0].removeprefix("modcache: ")
            raise UnidentifiedError(reason) from None
        text = f"{structure}/{weights}"
        if walk.scripted:
            text += f"/{self._code_of_scripted(walk, (generation, weights))}"
        return Sight(walk, weights, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())

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


def _version_of(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


_states: dict[int, tuple[weakref.ref[torch.nn.Module], ModuleState]] = {}
_states_lock = threading.Lock()


def state_of(module: torch.nn.Module) -> ModuleState:
    """The state of ``module``, made at its first use."""
    entry = _states.get(id(module))
    if entry is not None and entry[0]() is module:
        return entry[1]
    with _states_lock:
        entry = _states.get(id(module))
        if entry is not None and entry[0]() is module:
            return entry[1]
        state = ModuleState()
        _states[id(module)] = (weakref.ref(module, _Forget(id(module), state.watch)), state)
        return state


def forget_weights_of(module: torch.nn.Module) -> None:
    """The next look at ``module``, if there was one, reads every byte of its tensors."""
    entry = _states.get(id(module))
    if entry is not None and entry[0]() is module:
        with untraced():
            entry[1].forget_weights()


class _Forget:
    """Called when a module dies. Takes no lock: it may run in the middle of anything."""

    def __init__(self, address: int, watch: int) -> None:
        self._address = address
        self._watch = watch

    def __call__(self, reference: weakref.ref[torch.nn.Module]) -> None:
        entry = _states.get(self._address)
        if entry is not None and entry[0] is reference:
            _states.pop(self._address, None)
        with contextlib.suppress(Exception):  # at interpreter exit torch may be gone
            torch.ops.cache._unwatch(self._watch)


def _renew_locks_in_child() -> None:
    global _states_lock
    _states_lock = threading.Lock()
    for _, state in _states.values():
        state.renew_lock()


os.register_at_fork(after_in_child=_renew_locks_in_child)
