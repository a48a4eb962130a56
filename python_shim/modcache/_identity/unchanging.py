# SPDX-License-Identifier: Apache-2.0
"""A module around one run of it, where a snapshot spares the two looks in full."""

from __future__ import annotations

import torch

from modcache._identity.contents import version_of, versions_of, watched_digest
from modcache._identity.digest import difference, name_of_tensor
from modcache._identity.known import Recognized
from modcache._identity.module_state import ModuleState
from modcache._identity.records import same_objects


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
