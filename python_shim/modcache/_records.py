# SPDX-License-Identifier: Apache-2.0
"""What a walk remembers about classes and modules from call to call.

A record is made once, is checked by the identity of the objects it saw (cheap), and is replaced
by a new one when anything differs. No record keeps a module or a tensor alive.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection

import torch

from modcache._code import code_of_class
from modcache._names import top_package
from modcache._tokens import ATOMS

# What torch.nn.Module keeps in every instance; `training` is the one that is also a setting.
_INTERNAL = (frozenset(vars(torch.nn.Module())) - {"training"}) | {"_compiled_call_impl"}


def same_objects(now: Collection[object], before: Collection[object]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


class ClassRecord:
    """The code of a class as it was when it was read."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.code = code_of_class(cls)
        self.is_torch = top_package(cls.__module__) == "torch"
        self._bases = [base for base in cls.__mro__ if base not in (torch.nn.Module, object)]
        self._members = [tuple(vars(base).values()) for base in self._bases]

    def fits(self) -> bool:
        """False once a method or class attribute was replaced, or a function that it calls."""
        members = zip(self._bases, self._members, strict=True)
        return self.code.is_current() and all(
            same_objects(vars(base).values(), before) for base, before in members
        )


class ModuleRecord:
    """One module's atoms (numbers, text, ...) and the names of everything else it holds."""

    def __init__(self, module: torch.nn.Module) -> None:
        attributes = vars(module)
        self.cls = type(module)
        self._module = weakref.ref(module)
        self._names = frozenset(attributes)
        names = sorted(name for name in attributes if name not in _INTERNAL)
        self.atoms = [name for name in names if _is_atom(attributes[name])]
        self.others = [name for name in names if not _is_atom(attributes[name])]
        # Two names at least, so that itemgetter gives a tuple.
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
            and type(module) is self.cls
            and attributes.keys() == self._names
            and [*attributes["_parameters"], 0, *attributes["_buffers"], 0, *attributes["_modules"]]
            == self._held
        )

    def is_alive(self) -> bool:
        return self._module() is not None

    def values(self) -> dict[str, object]:
        """The atoms by attribute name."""
        return dict(zip(self.atoms, self._values[2:], strict=True))

    def structure(self) -> list[object]:
        """What the module has, apart from the atoms: names only."""
        return [*self.others, 0, *self._held]


def _is_atom(value: object) -> bool:
    if type(value) is tuple or type(value) is torch.Size:
        return all(type(item) in ATOMS for item in value)
    return type(value) in ATOMS
