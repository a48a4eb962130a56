# SPDX-License-Identifier: Apache-2.0
"""Flattens an eager module into leaves and tensors, cheaply enough to do so at every call.

A walk visits the module, its submodules and all values in their attributes, and makes a flat list
of leaves: atoms, classes, marks of structure, and records. Two walks found the same if their leaves
are the same objects (``same_leaves``). If not, ``digest.py`` decides whether they mean the same.
Tensors are collected in a list of their own, and the library hashes their contents.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from modcache._code.names import (
    is_installed,
    is_packaged,
    is_plain_metaclass,
    plain_name,
    trusted_name,
)
from modcache._code.reads import MISSING, Code
from modcache._code.tokens import ATOMS
from modcache._code.traversal import code_of_function
from modcache._code.wrapped import PROXIED, are_hooks_outside, class_behind, is_forward_alone
from modcache._identity.capturing import HOOK, HOOKED, NOT_HOOKED, captures
from modcache._identity.configs import note_of, noted_in
from modcache._identity.contents import TENSOR_TYPES
from modcache._identity.kinds import (
    CALLABLE,
    END,
    NAMED,
    TENSOR,
    Mark,
    StoppedError,
    UnidentifiedError,
    refusal_of,
    way_of_kind,
)
from modcache._identity.lenient import Lenient, OwnCodeError
from modcache._identity.memos import way_of_memo
from modcache._identity.operators import way_of_operator
from modcache._identity.packages import Entered, entered
from modcache._identity.plain import plain_values_in, slots_of
from modcache._identity.records import ClassName, ModuleRecord, Records
from modcache._identity.scratch import package_asked, scratch_of, scratch_of_module
from modcache._identity.scripted import look_at_scripted
from modcache._identity.tokenizers import way_of_tokenizer
from modcache._identity.unseen import why_unseen
from modcache._identity.wrappers import identified_as
from modcache._installed.seeds import Seeds

_DEEPEST = 100
_MOST_LEAVES = 1_000_000

_SEEN = Mark("seen")
_FORWARD_ALONE = Mark("forward alone")
_OBJECT = Mark("object")
_GLOBAL = Mark("global")


class Walk:
    """One look at a module. ``leaves``, ``tensors`` and ``scripted`` modules are the outcome.

    ``owners`` has (index of the first leaf, class name, attribute) for each attribute that was
    read. ``tensor_owners`` has (class name, attribute) by the index of a tensor found there. A
    tolerant walk passes over what cannot be hashed, so its leaves do not identify the module.
    """

    refuses_outdated = True  # functions with outdated memories (memos.py)

    def __init__(
        self, root: torch.nn.Module | None, records: Records, *, is_tolerant: bool = False
    ) -> None:
        self._root = root
        self._is_tolerant = is_tolerant
        self.leaves: list[object] = []
        self.tensors: list[torch.Tensor] = []
        self.scripted: list[torch.jit.ScriptModule] = []
        self.owners: list[tuple[int, str, str]] = []
        self.tensor_owners: dict[int, tuple[str, str]] = {}
        self.records = records
        self.seeds = Seeds()  # the places where packages were entered
        self.packages: Entered | None = None  # the packages entered there
        self.lenient: Lenient | None = None  # set in a walk over values of packages
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # an id means something only while its object lives
        self._classes: dict[type, None] = {}
        self._installed: dict[type, None] = {}  # to find that out takes its time
        self.depth = 0
        self._hooked = NOT_HOOKED
        has_hooks = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
        if has_hooks and not is_tolerant:
            raise UnidentifiedError("a forward hook for all modules is registered")
        # A cached forward is looked up inside of its module's own call, which may do more.
        if root is not None and is_forward_alone(type(root)):
            self.leaves.append(_FORWARD_ALONE)
        # Such a cached instance may lead to the given one, which has the same attributes.
        self._is_shared = root is not None and PROXIED in vars(type(root))
        try:
            self._asked = package_asked(root)
            if root is not None:
                self._read(root)
        except (UnidentifiedError, StoppedError):
            raise
        except Exception as error:
            raise refusal_of(root, error) from error

    def _read(self, root: torch.nn.Module) -> None:
        self._module(root)
        self.leaves.append(self._hooked)
        if not self._is_tolerant:
            self._enter_packages()
            self._check_tensors()

    def _enter_packages(self) -> None:
        if self.seeds.values or self.seeds.imports:
            found = self.packages = entered(self.seeds, Walk)
            self.leaves += (found.part, found.text)
            self.tensors += found.tensors
            self.scripted += found.scripted

    def apart(self, value: object) -> Walk:
        """Walks over another value, with the same records."""
        return walk_over(value, self.records)

    def own_leaves(self) -> list[object]:
        """Returns the leaves without those of packages."""
        return self.leaves if self.packages is None else self.leaves[:-2]

    def own_tensors(self) -> list[torch.Tensor]:
        """Returns the tensors that were not found in packages."""
        more = len(self.packages.tensors) if self.packages is not None else 0
        return self.tensors[: len(self.tensors) - more]

    def lists(self) -> tuple[list[Any], ...]:
        """Returns what grows during a walk, for a roll-back."""
        return self.leaves, self.tensors, self.scripted, self.owners, self._alive

    def maps(self) -> tuple[dict[Any, Any], ...]:
        return self._seen, self._classes, self._installed, self.tensor_owners

    def owner_at(self, index: int) -> tuple[str, str] | None:
        """Returns the class and attribute that the leaf at ``index`` belongs to."""
        return _owner_at(self.owners, index)

    def _check_tensors(self) -> None:
        strange = set(map(type, self.tensors)) - TENSOR_TYPES
        for tensor in self.tensors if strange else ():
            if torch.nn.parameter.is_lazy(tensor):
                raise UnidentifiedError("a lazy parameter has no value yet")
            if type(tensor) in strange:
                raise UnidentifiedError(
                    f"a tensor of the subclass {plain_name(type(tensor))} cannot be hashed"
                )

    def _is_first_visit(self, value: object) -> bool:
        index = self._seen.get(id(value))
        if index is not None:
            self.leaves += (_SEEN, index)
            return False
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return True

    def _module(self, module: torch.nn.Module) -> None:
        if not self._is_first_visit(module.__dict__ if self._is_shared else module):
            return
        record = self.records.modules.get(id(module))
        if record is None or not record.fits(module):
            if self._is_special(module):
                return
            kind = class_behind(type(module))
            record = ModuleRecord(module, self.named(kind), scratch_of_module(kind, self._asked))
            self.records.modules[id(module)] = record
        self.leaves.append(record)
        cls: Any = record.named.cls()
        if cls not in self._classes:
            self._class(cls)
        attributes = module.__dict__
        if record.has_tensors:
            self._state(attributes)
        self._others(record, module)
        has_hooks = attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]
        if has_hooks and not (module is self._root and are_hooks_outside(type(module))):
            self._hooks(record, attributes)
        for child in attributes["_modules"].values():
            if child is not None:
                self._module(child)
            self.leaves.append(END)

    def _others(self, record: ModuleRecord, module: torch.nn.Module) -> None:
        for name in record.others:
            self._owned(record.named.qualname, name, module.__dict__.get(name, MISSING))
        for name in record.slots:
            self._owned(record.named.qualname, name, getattr(module, name, MISSING))

    def _state(self, attributes: dict[str, Any]) -> None:
        for tensor in (*attributes["_parameters"].values(), *attributes["_buffers"].values()):
            self.leaves.append(TENSOR if tensor is not None else None)
            if tensor is not None:
                self.tensors.append(tensor)

    def _hooks(self, record: ModuleRecord, attributes: dict[str, Any]) -> None:
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            with_keywords = attributes[f"{kind}_with_kwargs"]
            for number, hook in attributes[kind].items():
                if captures(hook):
                    self._hooked = HOOKED
                    continue
                self.leaves += (HOOK, kind, number in with_keywords)
                self._owned(record.named.qualname, "forward hook", hook)

    def _owned(self, cls: str, name: str, value: object) -> None:
        """Reads an attribute, and names it in errors."""
        self.owners.append((len(self.leaves), cls, name))
        depth = self.depth
        try:
            self.value(value)
        except UnidentifiedError as error:
            if self._is_tolerant:
                self.depth = depth
                return
            if str(error).startswith("attribute "):
                raise
            raise UnidentifiedError(
                f"attribute '{name}' of {cls} cannot be hashed ({error})"
            ) from error.__cause__

    def _is_special(self, module: torch.nn.Module) -> bool:
        """Reads a module that does not keep its attributes like other modules."""
        if isinstance(module, torch.jit.ScriptModule):
            look_at_scripted(self, module)
        elif "training" not in module.__dict__:  # torch.compile's wrapper hands it on
            inner = identified_as(module)
            if inner is module:
                name = plain_name(type(module))
                why = "has hooks or methods of its own, and cannot be hashed"
                raise UnidentifiedError(f"a {name} {why}")
            self._module(inner)
        else:
            return False
        return True

    def _class(self, cls: type) -> None:
        self._classes[cls] = None
        record = self.records.of_class(cls)
        self.leaves.append(record)
        self._reads(record.code)
        if not is_plain_metaclass(cls):
            self.named_class(type(cls))

    def _reads(self, code: Code) -> None:
        if code.unknown and not self._is_tolerant:
            refused = OwnCodeError if self.lenient else UnidentifiedError
            raise refused(code.unknown) from code.cause
        self.seeds.add_code(code)
        for read in code.reads:
            self.leaves.append(_GLOBAL)
            self._owned("global", read.name, read.value())

    def value(self, value: Any) -> None:
        """Reads any value that an attribute may hold."""
        kind = type(value)
        try:
            if kind in ATOMS:
                self.leaves.append(value)
                return
            self.depth += 1
            if self.depth > _DEEPEST or len(self.leaves) > _MOST_LEAVES:
                raise UnidentifiedError(f"more than {_DEEPEST} levels deep, or too large")
            named = self.records.names.of(kind)
            look = named.way
            if look is None:
                look = named.way = way_to_look_at(kind)
            if self.lenient is not None:
                self.lenient.value(self, look, value)
            else:
                look(self, value)
        except (UnidentifiedError, StoppedError):
            raise
        except Exception as error:  # the value's own code, which may do anything
            raise refusal_of(value, error) from error
        self.depth -= 1

    def text_of(self, item: object) -> str:
        """Returns the text by which the items of a set are sorted."""
        return repr(item)

    def _tensor(self, value: torch.Tensor) -> None:
        self.leaves.append(TENSOR)
        if self.owners:
            self.tensor_owners[len(self.tensors)] = self.owners[-1][1:]
        self.tensors.append(value)

    def named(self, cls: type) -> ClassName:
        """Returns the leaf of a class. Leaves are kept, and must not keep classes alive."""
        return self.records.names.of(cls)

    def named_class(self, cls: type) -> None:
        """Reads a class: its code, if it is the user's own."""
        self.leaves += (NAMED, self.named(cls))
        if cls in self._installed:
            return
        if is_installed(cls):
            self._installed[cls] = None
            if is_packaged(cls):
                self.seeds.add(cls)
        elif cls not in self._classes:
            self._class(cls)

    def _function(self, function: types.FunctionType) -> None:
        name = trusted_name(function)
        if name:
            self.leaves += (CALLABLE, name)
            return
        if not self._is_first_visit(function):
            return
        if is_packaged(function):
            self.leaves += (CALLABLE, plain_name(function), function.__code__.co_firstlineno)
            self.seeds.add(function)
            return
        known = self.records.functions.get(id(function))
        if known is None or known[0]() is not function or not known[1].is_current():
            known = (weakref.ref(function), code_of_function(function))
            self.records.functions[id(function)] = known
        self.leaves += (CALLABLE, known[1])
        self._reads(known[1])

    def _object(self, value: Any) -> None:
        """Reads an object of a class written in Python: its class and its attributes."""
        if not self._is_first_visit(value):
            return
        if reason := why_unseen(value):
            raise UnidentifiedError(f"a {plain_name(type(value))} {reason}")
        self.leaves += plain_values_in(value)
        self.leaves.append(_OBJECT)
        self.attributes(value)

    def attributes(self, value: Any) -> None:
        """Reads the class of an object, its attributes and its slots."""
        kind = type(value)
        self.named_class(kind)
        attributes = getattr(value, "__dict__", {})
        noted = noted_in(kind)
        for name in sorted(attributes.keys() - scratch_of(kind)):
            note = note_of(name, attributes[name]) if name in noted else None
            self.leaves.append(note or name)
            if note is None:
                self.value(attributes[name])
        self.leaves.append(END)
        for name in slots_of(kind):
            self.leaves.append(name)
            self.value(getattr(value, name, MISSING))


def _owner_at(owners: list[tuple[int, str, str]], index: int) -> tuple[str, str] | None:
    """Returns the class and attribute that the leaf at ``index`` belongs to."""
    found = None
    for start, cls, name in owners:
        if start > index:
            break
        found = (cls, name)
    return found


class Outline:
    """What a walk found, without anything that keeps it alive, for a later comparison."""

    def __init__(self, walk: Walk) -> None:
        self.leaves = walk.leaves
        self._own_leaves = walk.own_leaves()
        self._owners = walk.owners
        self.is_in_training: bool | None = None  # any part of the module; None: not asked yet

    def own_leaves(self) -> list[object]:
        return self._own_leaves

    def owner_at(self, index: int) -> tuple[str, str] | None:
        return _owner_at(self._owners, index)


def walk_over(
    value: object,
    records: Records,
    make: Callable[[torch.nn.Module, Records], Walk] = Walk,
) -> Walk:
    """Walks over any value, as the one attribute of a module. ``make`` makes the walk.

    Raises:
        UnidentifiedError: something in it cannot be hashed.
    """
    holder = torch.nn.Module()
    holder.__dict__["value"] = value
    return make(holder, records)


def way_to_look_at(kind: type) -> Callable[[Walk, Any], None]:
    """Finds the function that reads values of exactly this type."""
    ways = (way_of_memo, way_of_operator, way_of_tokenizer, way_of_kind)
    known = next((way for find in ways if (way := find(kind))), None)
    return known or next((way for bases, way in _WAYS if issubclass(kind, bases)), Walk._object)


_WAYS: tuple[tuple[Any, Callable[[Walk, Any], None]], ...] = (
    (torch.Tensor, Walk._tensor),
    (torch.nn.Module, Walk._module),
    (type, Walk.named_class),
    (types.FunctionType, Walk._function),
)
