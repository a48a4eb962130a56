# SPDX-License-Identifier: Apache-2.0
"""The result of ``explain``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

MOST_SHOWN = 10


@dataclass(frozen=True)
class Explanation:
    """Says what a call of ``lookup_or_run`` would find, and why. As text it is a short paragraph.

    Attributes:
        status: "hit"; "miss"; "partial" (of several keys some hit and some miss); or "bypassed":
            the module is run, and its result is not stored.
        reason: one clause that says why.
        method: the method that the call would run.
        scope: the module's part of the address: its fingerprint, or the given name. Empty if it
            was not needed.
        keys: the distinct keys, in order.
        hits: how many of them hit.
        first_missing: the first keys that miss, at most ten.
        changed: on a miss for a new scope: the names of the weights, functions, attributes and
            submodules that differ from ``compared_with``. ``weights``, ``code``, ``attributes``
            and ``others`` are the same by kind.
        compared_with: the scope of this class that differs least among those stored last; empty
            if there is none, or nothing to compare.
        tier: "memory", "disk" or "remote" for a hit, else empty; with several keys, that of the
            first hit.
        size_bytes: size of that entry's value in bytes, as the tier holds it.
        stored_at: the time when it was stored, in ISO 8601; empty if that is not known.
        run_us: the time in microseconds that its run took, which a hit saves.
    """

    status: str
    reason: str
    method: str
    scope: str = ""
    keys: list[str] = field(default_factory=list)
    hits: int = 0
    first_missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    compared_with: str = ""
    tier: str = ""
    size_bytes: int = 0
    stored_at: str = ""
    run_us: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns a dict of plain values, for ``json.dumps``."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.reason}"]
        if self.scope:
            lines.append(f"  scope: {self.scope}")
        if len(self.keys) == 1:
            lines.append(f"  key: {self.keys[0]}")
        elif self.keys:
            lines.append(f"  keys: {len(self.keys)}, of which {self.hits} hit")
            if self.first_missing:
                lines.append(f"  missing: {_listed(self.first_missing)}")
        for kind in ("weights", "code", "attributes", "others"):
            if names := getattr(self, kind):
                lines.append(f"  {kind} that differ: {_listed(names)}")
        return "\n".join(lines)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more
