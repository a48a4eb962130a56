# SPDX-License-Identifier: Apache-2.0
"""What walks remember about classes and modules from call to call.

A record is made once. A cheap check compares the identity of the objects that it saw, and a new
record replaces it if anything differs. Records do not keep modules, classes, functions of the
user's or tensors alive.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from modcache._code.names import is_installed, parts_of_member, plain_name, top_package
from modcache._code.objects import is_a
from modcache._code.reads import Code, weakly
from modcache._code.tokens import ATOMS
from modcache._code.traversal import code_of_class
from modcache._identity.plain import slots_of
from modcache._identity.scripted import ScriptRecord

# Attributes that torch.nn.Module sets in every instance, apart from the setting `training`.
# torch.compile, torch.jit.script and transformers (capturing.py) leave marks on modules.
_INTERNAL = (frozenset(vars(torch.nn.Module())) - {"training"}) | {
    "_compiled_call_impl", "_is_torch_compile", "__overloads__",
    "_output_capturing_hooks_installed",
}  # fmt: skip

# Those of them that a walk does not read.
UNSEEN = _INTERNAL - {
    "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
}  # fmt: skip

_MOST_FUNCTIONS = 4096
_CONTAINERS = (list, tuple, dict, set, frozenset)


def same_objects(now: Collection[object], before: Collection[object]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def same_leaves(now: list[object], before: list[object]) -> bool:
    """True only if both mean the same. Atoms that were made anew are compared by value."""
    if same_objects(now, before):
        return True
    return len(now) == len(before) and all(
        a is b or (type(a) is type(b) and type(a) in (str, bytes, int) and a == b)
        for a, b in zip(now, before, strict=True)
    )


class ClassName:
    """A class as a leaf: one object for each class, as long as that lives."""

    __slots__ = ("__weakref__", "cls", "plain", "qualname", "state_way", "way")

    def __init__(self, cls: type) -> None:
        self.cls: weakref.ref[type] = weakref.ref(cls)
        self.qualname = cls.__qualname__
        self.plain = self.qualname if cls.__module__ == "__main__" else plain_name(cls)
        self.way: Callable[[Any, Any], None] | None = None  # how a walk reads its objects
        self.state_way: Callable[[Any, Any], None] | None = None  # the same of a StateWalk


class ClassNames:
    """All classes that walks have met."""

    def __init__(self) -> None:
        self._names: dict[int, ClassName] = {}
        self._room = 256

    def of(self, cls: type) -> ClassName:
        known = self._names.get(id(cls))
        if known is None or known.cls() is not cls:
            known = self._names[id(cls)] = ClassName(cls)
            if len(self._names) > self._room:
                alive = {key: name for key, name in self._names.items() if name.cls() is not None}
                self._names, self._room = alive, 2 * len(alive) + 256
        return known


class ClassRecord:
    """The code of a class as it was when it was read."""

    def __init__(self, cls: type, named: ClassName) -> None:
        self.named = named
        self.code = code_of_class(cls)
        self.is_torch = top_package(cls.__module__) == "torch"
        self._order = [id(base) for base in cls.__mro__]
        # Gets an item when a member is freed, and another object may get its id.
        self._freed: list[object] = []
        self._kept: list[object] = []
        self._bases: list[tuple[weakref.ref[type], list[int], list[tuple[str, object]]]] = []
        for base in cls.__mro__:
            if base not in (torch.nn.Module, object):
                members = vars(base)
                own = not is_installed(base)
                told = [(name, self._watched(value, own)) for name, value in members.items()]
                self._bases.append(
                    (
                        weakref.ref(base),
                        [id(value) for value in members.values()],
                        [(name, facts) for name, facts in told if facts is not None],
                    )
                )

    def _watched(self, value: object, own: bool) -> object:
        """Finds what to compare besides the id of a member; None if the id is enough.

        Containers in the user's own classes are read as values of the code.
        """
        if type(value) in ATOMS or (not own and is_a(value, _CONTAINERS)):
            self._kept.append(value)
            return None
        try:
            # append is no Python function, which could not run when the interpreter ends.
            self._kept.append(weakref.ref(value, self._freed.append))
        except TypeError:  # another object may get its id unnoticed
            return _facts_of(value)
        return None

    def fits(self, cls: type) -> bool:
        """False once a method, a class attribute or a function that they call was replaced."""
        if self._freed or self._order != [id(base) for base in cls.__mro__]:
            return False
        for reference, ids, told in self._bases:
            base = reference()
            if base is None or ids != list(map(id, vars(base).values())):
                return False
            if told and any(_facts_of(vars(base).get(name)) != facts for name, facts in told):
                return False
        return self.code.is_current()


def _facts_of(member: object) -> object:
    """Returns what tells apart members of a class that take no weak reference."""
    parts = (getattr(member, name) for name in parts_of_member(member))
    return tuple(map(_Same, (type(member), *parts)))


class _Same:
    """Equals another one that was made of the same object, while that object lives."""

    def __init__(self, value: object) -> None:
        self._value = weakly(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        mine, its = self._value(), other._value()
        is_gone = mine is None and isinstance(self._value, weakref.ref)
        return mine is its and not is_gone

    __hash__ = None  # type: ignore[assignment]


class ModuleRecord:
    """The atoms of one module (numbers, text, ...), and the names of all else that it holds."""

    def __init__(
        self, module: torch.nn.Module, named: ClassName, scratch: frozenset[str] = frozenset()
    ) -> None:
        attributes = vars(module)
        self.named = named
        self.unseen = UNSEEN | scratch
        self._module = weakref.ref(module)
        self.slots = slots_of(type(module))
        self._kind = weakref.ref(type(module))  # perhaps a proxy class of the class in ``named``
        self._names = frozenset(attributes)
        names = sorted(attributes.keys() - _INTERNAL - scratch)
        self.atoms = [name for name in names if _is_atom(attributes[name])]
        self.others = [name for name in names if not _is_atom(attributes[name])]
        # With at least two names, itemgetter returns a tuple.
        self._get = operator.itemgetter("training", "training", *self.atoms)
        self._values = self._get(attributes)
        parameters, buffers = attributes["_parameters"], attributes["_buffers"]
        self.has_tensors = bool(parameters or buffers)
        self._held = [*parameters, 0, *buffers, 0, *attributes["_modules"]]

    def fits(self, module: torch.nn.Module) -> bool:
        attributes = module.__dict__
        try:
            values = self._get(attributes)
        except KeyError:
            return False
        return (
            all(map(operator.is_, values, self._values))
            and self._module() is module
            and type(module) is self._kind()
            and attributes.keys() == self._names
            and [*attributes["_parameters"], 0, *attributes["_buffers"], 0, *attributes["_modules"]]
            == self._held
        )

    def is_alive(self) -> bool:
        return self._module() is not None

    def values(self) -> dict[str, object]:
        """Returns the atoms by attribute name."""
        return dict(zip(self.atoms, self._values[2:], strict=True))

    def is_in_training(self) -> bool:
        return self._values[0] is True

    def structure(self) -> list[object]:
        """Returns the names of what the module has, apart from the atoms."""
        slots: list[object] = [0, *self.slots] if self.slots else []
        return [*self.others, 0, *self._held, *slots]


def codes_among(leaves: Iterable[object]) -> Iterator[tuple[str, Code]]:
    """Finds the code that a walk has followed, with the name of its class, or ""."""
    for leaf in leaves:
        if isinstance(leaf, ClassRecord):
            yield leaf.named.plain, leaf.code
        elif isinstance(leaf, Code):
            yield "", leaf


def _is_atom(value: object) -> bool:
    if type(value) is tuple or type(value) is torch.Size:
        return all(type(item) in ATOMS for item in value)
    return type(value) in ATOMS


class Records:
    """The records that the walks over one module share."""

    def __init__(self) -> None:
        self.modules: dict[int, ModuleRecord] = {}
        self.scripted: dict[int, ScriptRecord] = {}
        self.names = ClassNames()
        self.functions: dict[int, tuple[weakref.ref[types.FunctionType], Code]] = {}
        self._classes: dict[int, ClassRecord] = {}
        self._room = 256

    def of_class(self, cls: type) -> ClassRecord:
        named = self.names.of(cls)
        record = self._classes.get(id(cls))
        if record is None or record.named is not named or not record.fits(cls):
            record = self._classes[id(cls)] = ClassRecord(cls, named)
        return record

    def forget_the_dead(self) -> None:
        """Drops records of freed modules, once there are many."""
        if len(self.modules) + len(self.scripted) + len(self._classes) > self._room:
            self.modules = {k: record for k, record in self.modules.items() if record.is_alive()}
            self.scripted = {k: record for k, record in self.scripted.items() if record.is_alive()}
            self._classes = {
                k: record for k, record in self._classes.items() if record.named.cls() is not None
            }
            alive = len(self.modules) + len(self.scripted) + len(self._classes)
            self._room = 2 * alive + 256
        if len(self.functions) > _MOST_FUNCTIONS:
            self.functions = {}
