# SPDX-License-Identifier: Apache-2.0
"""What the functions of installed packages name: globals, attributes, imports, what they write."""

from __future__ import annotations

import dis
import functools
import importlib.util
import types
from collections.abc import Iterator
from dataclasses import dataclass

# Methods that change a list, set, dict or deque.
_CHANGING = frozenset(
    {
        "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
        "popleft", "remove", "setdefault", "update",
    }
)  # fmt: skip


def resolved_import(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return ""


@dataclass(frozen=True)
class Scan:
    """What a function, and the code inside of it, names."""

    names: tuple[str, ...]
    attributes: tuple[str, ...]
    globals: tuple[tuple[str, ...], ...]
    # Names with their dots, and what is taken from there; nothing: the module itself.
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    written: frozenset[str]  # globals


@functools.lru_cache(maxsize=16384)
def scan_of(code: types.CodeType) -> Scan:
    names: dict[str, None] = {}
    attributes: dict[str, None] = {}
    chains: dict[tuple[str, ...], None] = {}
    imports: dict[str, dict[str, None]] = {}
    written: set[str] = set()
    for each in with_inner(code):
        names.update(dict.fromkeys(each.co_names))
        scanner = _Scanner(attributes, chains, imports, written)
        for instruction in dis.get_instructions(each):
            scanner.take(instruction)
        scanner.end_chain()
    return Scan(
        tuple(names),
        tuple(attributes),
        tuple(chains),
        tuple((name, tuple(taken)) for name, taken in imports.items()),
        frozenset(written),
    )


class _Scanner:
    """Reads one code object, instruction by instruction."""

    def __init__(
        self,
        attributes: dict[str, None],
        chains: dict[tuple[str, ...], None],
        imports: dict[str, dict[str, None]],
        written: set[str],
    ) -> None:
        self._attributes, self._chains = attributes, chains
        self._imports, self._written = imports, written
        self._chain: list[str] = []
        self._last_global = ""
        self._loads_since = 0
        self._level = 0
        self._imported = ""

    def end_chain(self) -> None:
        if self._chain:
            self._chains[tuple(self._chain)] = None
            self._chain = []

    def take(self, instruction: dis.Instruction) -> None:
        operation, argument = instruction.opname, instruction.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attributes[str(argument)] = None
            if self._chain:
                self._chain.append(str(argument))
                if argument in _CHANGING and len(self._chain) == 2:
                    self._written.add(self._chain[0])
            return
        self.end_chain()
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            self._chain = [str(argument)]
            self._last_global, self._loads_since = str(argument), 0
        elif operation in ("STORE_GLOBAL", "STORE_SUBSCR", "DELETE_SUBSCR"):
            self._take_write(operation, argument)
        elif operation in ("IMPORT_NAME", "IMPORT_FROM"):
            self._take_import(operation, str(argument))
        elif operation.startswith("LOAD_"):
            if operation == "LOAD_CONST" and type(argument) is int:
                self._level = argument
            self._loads_since += 1
        elif operation != "CACHE":
            self._loads_since = 2

    def _take_write(self, operation: str, argument: object) -> None:
        if operation == "STORE_GLOBAL":
            self._written.add(str(argument))
        elif self._last_global and self._loads_since <= 1:  # the index alone stands between
            self._written.add(self._last_global)

    def _take_import(self, operation: str, name: str) -> None:
        if operation == "IMPORT_NAME":
            self._imported = "." * self._level + name
        taken = self._imports.setdefault(self._imported, {})
        if operation == "IMPORT_FROM":
            taken[name] = None


def with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner(constant)
