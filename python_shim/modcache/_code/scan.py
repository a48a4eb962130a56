# SPDX-License-Identifier: Apache-2.0
"""The names in code objects: globals, attributes, imports, and globals that code writes."""

from __future__ import annotations

import dis
import functools
import importlib.util
import types
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

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
    """The names in a function, and in the code inside of it."""

    names: tuple[str, ...]
    attributes: tuple[str, ...]
    globals: tuple[tuple[str, ...], ...]
    # Names with their dots, and the names taken from there; none: the module itself.
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    written: frozenset[str]  # globals
    changed: frozenset[str]  # globals that are written, or whose attributes or items may be
    written_in_class: frozenset[str]  # attributes of the class of a class method


@functools.lru_cache(maxsize=16384)
def scan_of(code: types.CodeType) -> Scan:
    names: dict[str, None] = {}
    scanner = _Scanner()
    for each in with_inner(code):
        names.update(dict.fromkeys(each.co_names))
        scanner.read(each)
    return Scan(
        tuple(names),
        tuple(scanner.attributes),
        tuple(scanner.chains),
        tuple((name, tuple(taken)) for name, taken in scanner.imports.items()),
        frozenset(scanner.written),
        frozenset(scanner.written | scanner.changed),
        frozenset(scanner.written_in_class),
    )


class NamesLoaded(NamedTuple):
    """The names in one code object: globals with the attributes read through each, and imports."""

    globals: list[tuple[str, ...]]
    attributes: dict[str, None]
    imports: dict[str, None]  # without the dots of relative ones


def names_in(code: types.CodeType) -> NamesLoaded:
    scanner = _Scanner()
    scanner.read(code)
    # An assert that pytest rewrote reports its failure through names that begin with @. They lead
    # to all that pytest has loaded, and no result depends on them.
    chains = [chain for chain in scanner.chains if not chain[0].startswith("@")]
    imports = dict.fromkeys(name.lstrip(".") for name in scanner.imports)
    return NamesLoaded(chains, scanner.attributes, imports)


class _Scanner:
    """Reads code objects, instruction by instruction."""

    def __init__(self) -> None:
        self.attributes: dict[str, None] = {}
        self.chains: dict[tuple[str, ...], None] = {}
        self.imports: dict[str, dict[str, None]] = {}
        self.written: set[str] = set()
        self.changed: set[str] = set()
        self.written_in_class: set[str] = set()

    def read(self, code: types.CodeType) -> None:
        """Adds what ``code`` names, without the code inside of it."""
        self._chain: list[str] = []
        self._last_global = ""
        self._loads_since = 0
        self._level = 0
        self._imported = ""
        self._is_class_loaded = False
        for instruction in dis.get_instructions(code):
            self._take(instruction)
        self._end_chain()

    def _end_chain(self) -> None:
        if self._chain:
            self.chains[tuple(self._chain)] = None
            self._chain = []

    def _take(self, instruction: dis.Instruction) -> None:
        operation, argument = instruction.opname, instruction.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            self.attributes[str(argument)] = None
            self._is_class_loaded = False
            if self._chain:
                self._chain.append(str(argument))
                if argument in _CHANGING and len(self._chain) == 2:
                    self.written.add(self._chain[0])
            return
        self._end_chain()
        self._note_change(operation)
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            self._chain = [str(argument)]
            self._last_global, self._loads_since = str(argument), 0
        elif operation in ("STORE_GLOBAL", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR"):
            self._take_write(operation, argument)
        elif operation in ("IMPORT_NAME", "IMPORT_FROM"):
            self._take_import(operation, str(argument))
        elif operation.startswith("LOAD_"):
            if operation == "LOAD_CONST" and type(argument) is int:
                self._level = argument
            self._loads_since += 1
        elif operation != "CACHE":
            self._loads_since = 2
        loaded = argument if isinstance(argument, tuple) else (argument,)  # two in one instruction
        self._is_class_loaded = operation.startswith("LOAD_FAST") and loaded[-1] == "cls"

    def _note_change(self, operation: str) -> None:
        """Notes S in ``S.n = 1``, and in ``S.n += 1`` or ``S["n"] += 1``, which copy S first."""
        is_near = bool(self._last_global) and self._loads_since <= 1
        if is_near and operation in ("COPY", "STORE_ATTR"):
            self.changed.add(self._last_global)

    def _take_write(self, operation: str, argument: object) -> None:
        if operation == "STORE_GLOBAL":
            self.written.add(str(argument))
        elif operation == "STORE_ATTR":
            self._loads_since = 2
            if self._is_class_loaded:
                self.written_in_class.add(str(argument))
        elif self._last_global and self._loads_since <= 1:  # the index alone stands between
            self.written.add(self._last_global)

    def _take_import(self, operation: str, name: str) -> None:
        if operation == "IMPORT_NAME":
            self._imported = "." * self._level + name
        taken = self.imports.setdefault(self._imported, {})
        if operation == "IMPORT_FROM":
            taken[name] = None


def mentions(code: types.CodeType, words: Set[str]) -> bool:
    """Whether one of the words stands in the code, as a name or as text."""
    return any(not words.isdisjoint((*each.co_names, *each.co_consts)) for each in with_inner(code))


def with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner(constant)
