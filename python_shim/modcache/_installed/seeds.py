# SPDX-License-Identifier: Apache-2.0
"""The places where a walk enters the code of packages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from modcache._code.reads import Code


@dataclass
class Seeds:
    """The places where a walk entered the code of packages, in order."""

    # Keyed by id: the value, and whether it is a class that may be called to make objects.
    values: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    imports: dict[tuple[str, str], None] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)  # that the user's own code mentions

    def add(self, value: object, *, is_made: bool = True) -> None:
        known = self.values.get(id(value))
        self.values[id(value)] = (value, is_made or (known is not None and known[1]))

    def add_code(self, code: Code) -> None:
        for reference in code.packaged:
            value = reference()
            if value is not None:
                self.add(value, is_made=False)
        self.imports.update(code.imports)
        self.names.update(code.names)

    def copy(self) -> Seeds:
        return Seeds({**self.values}, {**self.imports}, {**self.names})

    def add_all(self, other: Seeds) -> None:
        for value, is_made in other.values.values():
            self.add(value, is_made=is_made)
        self.imports.update(other.imports)
        self.names.update(other.names)

    def key(self) -> tuple[object, ...]:
        values = tuple((id(value), is_made) for value, is_made in self.values.values())
        return values, tuple(self.imports), tuple(self.names)
