# SPDX-License-Identifier: Apache-2.0
"""What later checks compare: the values that code reads, and the objects that it was made of.

Everything is held weakly, or by the name under which something else holds it. A module, its class
and the namespace of both can refer to each other in a circle, and nothing here may keep them alive.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modcache._code.objects import is_a

MISSING = "modcache: no such global"
_NO_NAMES: Mapping[str, Any] = {}


class Place:
    """A namespace, reached through its owner: the globals of a function, or a module's names."""

    def __init__(self, owner: types.FunctionType | types.ModuleType) -> None:
        self._owner: weakref.ref[Any] = weakref.ref(owner)
        self._name = "__globals__" if is_a(owner, types.FunctionType) else "__dict__"

    def owner(self) -> Any:
        """Returns the function or Python module; None once it is freed."""
        return self._owner()

    def names(self) -> Mapping[str, Any]:
        """Returns the namespace; empty once the owner is freed."""
        owner = self._owner()
        return _NO_NAMES if owner is None else getattr(owner, self._name)


@dataclass(eq=False)
class Read:
    """A value that code reads from outside itself, found anew at every check.

    ``kind`` says where the value is: a ``global`` of a function or a Python module, a ``member`` of
    a class, an ``attribute`` or a ``cell`` of a function, an ``operator`` of torch, or a ``mode``
    of the thread that a function asks for. ``owner()`` is that function, module or class, None once
    it is freed. ``path`` leads from the owner to the value: names, or the number of a cell. Where
    ``value()`` is made of what is there, ``guarded()`` is that itself.
    """

    name: str
    value: Callable[[], object]
    kind: str
    owner: Callable[[], Any]
    path: tuple[Any, ...]
    guarded: Callable[[], object] | None = None


def read_of_global(place: Place, name: str) -> Read:
    return Read(name, lambda: place.names().get(name, MISSING), "global", place.owner, (name,))


def read_of_member(cls: type, path: tuple[str, ...]) -> Read:
    """Makes a Read. ``path``: the name in the class, and attributes of what it names."""
    owner = weakref.ref(cls)

    def value() -> object:
        found: Any = vars(owner() or object).get(path[0], MISSING)
        for name in path[1:]:
            found = getattr(found, name, MISSING)
        return found

    return Read(path[0], value, "member", owner, path)


def read_of_operator(place: Place, operator: object) -> Read:
    return Read("torch.ops", lambda: operator, "operator", place.owner, ())


def read_of_mode(place: Place, name: str, ask: Callable[[], object]) -> Read:
    return Read(name, ask, "mode", place.owner, ())


def read_of_attribute(function: types.FunctionType, name: str) -> Read:
    owner = weakref.ref(function)
    return Read(name, lambda: getattr(owner(), name, MISSING), "attribute", owner, (name,))


def read_of_cell(function: types.FunctionType, index: int) -> Read:
    owner = weakref.ref(function)

    def value() -> object:
        living = owner()
        try:
            return MISSING if living is None else living.__closure__[index].cell_contents  # type: ignore[index]
        except ValueError:  # not filled yet
            return MISSING

    return Read(function.__code__.co_freevars[index], value, "cell", owner, (index,))


def weakly(value: object) -> Callable[[], object]:
    """Returns a weak reference; a function that holds an object which cannot have one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


@dataclass
class Code:
    """The code that was found. ``digest`` is stable across processes; later checks use the rest."""

    digest: bytes = b""
    mentions_training: bool = False
    mentions_backend: bool = False  # the inner one of a tokenizer, as a name or as text
    unknown: str = ""  # the reason why this code cannot be identified
    cause: Exception | None = None  # what an object raised that the code reads
    reads: list[Read] = field(default_factory=list)
    # Where the code enters installed packages: functions, classes and modules; imports as (module,
    # name); and all names that it mentions, which may be names of methods there.
    packaged: list[Callable[[], object]] = field(default_factory=list)
    imports: dict[tuple[str, str], None] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    _held: dict[int, tuple[Place, dict[str, Callable[[], object]]]] = field(default_factory=dict)
    _functions: list[tuple[weakref.ref[types.FunctionType], tuple[object, ...]]] = field(
        default_factory=list
    )
    _classes: list[tuple[weakref.ref[type], int]] = field(default_factory=list)
    _members: list[tuple[weakref.ref[type], str, Callable[[], object]]] = field(
        default_factory=list
    )

    def hold(self, place: Place, name: str, value: object) -> None:
        """Makes this code current only while ``place`` has ``value`` under ``name``.

        REQUIRES: ``value`` belongs to a trusted module where it takes no weak reference.
        """
        _, held = self._held.setdefault(id(place.names()), (place, {}))
        held[name] = weakly(value)

    def hold_function(self, function: types.FunctionType) -> None:
        self._functions.append((weakref.ref(function), _parts_of(function)))

    def hold_class(self, cls: type) -> None:
        """Makes this code current only while the class gets and loses no attribute."""
        self._classes.append((weakref.ref(cls), len(vars(cls))))

    def hold_member(self, cls: type, name: str, value: object) -> None:
        """Makes this code current only while the class has ``value`` under ``name``."""
        self._members.append((weakref.ref(cls), name, weakly(value)))

    def classes(self) -> list[type | None]:
        """Returns the classes that must keep their attributes; None for a freed one."""
        return [reference() for reference, _ in self._classes]

    def held(self) -> Iterator[tuple[Any, str, object]]:
        """Lists what has to stay: its holder, its name there, and the object."""
        for place, held in self._held.values():
            for name, reference in held.items():
                yield place.owner(), name, reference()

    def functions(self) -> list[types.FunctionType | None]:
        """Returns the functions that must keep their code; None for a freed one."""
        return [reference() for reference, _ in self._functions]

    def is_current(self) -> bool:
        """False once something that was followed has been replaced or freed."""
        for place, held in self._held.values():
            names = place.names()
            for name, reference in held.items():
                value = names.get(name, MISSING)
                if value is None or reference() is not value:
                    return False
        for owner, count in self._classes:
            if len(vars(owner() or object)) != count:
                return False
        for owner, name, reference in self._members:
            if vars(owner() or object).get(name, MISSING) is not reference():
                return False
        return all(_parts_of(function()) == parts for function, parts in self._functions)


def _parts_of(function: types.FunctionType | None) -> tuple[object, ...]:
    """Returns the parts of a function that may be replaced while it stays the same object."""
    if function is None:
        return ()
    return (
        function.__code__, id(function.__defaults__), id(function.__kwdefaults__),
        bool(function.__dict__),
    )  # fmt: skip
