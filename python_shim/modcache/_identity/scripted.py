# SPDX-License-Identifier: Apache-2.0
"""Scripted modules inside an eager one.

Python code may call any of their methods and read any of their attributes. So all methods and
attributes count, also those of submodules. The walk reads what they hold, and the library
identifies their code.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from modcache._identity.contents import TENSOR_TYPES
from modcache._identity.kinds import END, NOT_TRAINING, TENSOR, TRAINING, UnidentifiedError
from modcache._library.text import first_line

if TYPE_CHECKING:
    from modcache._identity.walk import Walk

SCRIPTED: type = torch.jit._script.RecursiveScriptModule
_INTERNAL = frozenset(
    {
        *vars(torch.nn.Module()), "_c", "_concrete_type", "_initializing", "_actual_script_module",
        "_is_full_backward_hook",
    }
)  # fmt: skip


def native(module: torch.nn.Module) -> Any:
    """Returns the form of a scripted module that operators get.

    If an operator got the Python object, torch would keep a reference, and never free the module.
    """
    return module._c


class ScriptRecord:
    """A scripted module as a leaf: the names of what it holds, apart from its submodules."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        native: Any = module._c
        self._module = weakref.ref(module)
        self._native = id(native)
        self.name = str(native._type().name())
        held = module._concrete_type.get_attributes()
        self.attributes = sorted(set(held) - {"training", "_is_full_backward_hook"})
        self.has_training = "training" in held
        self.python_attributes = _python_attributes(module)
        self._note_names(module)

    def tokens(self) -> tuple[str, ...]:
        return ("scripted", self.name, str(len(self.attributes)), *self.attributes)

    def _note_names(self, module: torch.jit.ScriptModule) -> None:
        held = vars(module)
        self._names = frozenset(held)
        self._methods = [name for name in held if type(held[name]) is torch._C.ScriptMethod]

    def fits(self, module: torch.jit.ScriptModule) -> bool:
        if self._module() is not module or self._native != id(module._c):
            return False
        held = vars(module)
        if held.keys() != self._names:  # torch adds a method at its first use
            if _python_attributes(module) != self.python_attributes:
                return False
            self._note_names(module)
        return all(type(held[name]) is torch._C.ScriptMethod for name in self._methods)

    def is_alive(self) -> bool:
        return self._module() is not None


def look_at_scripted(walk: Walk, module: torch.jit.ScriptModule) -> None:
    record = walk.records.scripted.get(id(module))
    if record is None or not record.fits(module):
        record = walk.records.scripted[id(module)] = ScriptRecord(module)
    walk.scripted.append(module)
    walk.leaves.append(record)
    native: Any = module._c
    if record.has_training:
        walk.leaves.append(TRAINING if native.getattr("training") else NOT_TRAINING)
    for name in record.attributes:
        value = native.getattr(name)
        if type(value) in TENSOR_TYPES:
            walk.leaves.append(TENSOR)
            walk.tensor_owners[len(walk.tensors)] = (record.name, name)
            walk.tensors.append(value)
        else:
            walk._owned(record.name, name, value)
    for name in record.python_attributes:
        walk.leaves.append(name)
        walk._owned(record.name, name, vars(module)[name])
    if type(module) is not SCRIPTED:
        walk.named_class(type(module))
    children: Any = module._modules
    for name, child in children.items():
        walk.leaves.append(name)
        walk._module(child)
        walk.leaves.append(END)


def _python_attributes(module: torch.jit.ScriptModule) -> list[str]:
    """Names the attributes on the Python side that torch did not set.

    Containers also have methods there, which are bound to the module that was scripted and return
    its submodules.
    """
    return sorted(
        name
        for name, value in vars(module).items()
        if name not in _INTERNAL and type(value) is not torch._C.ScriptMethod
    )


def code_of_scripted(modules: Iterable[torch.jit.ScriptModule]) -> str:
    """Returns the fingerprints of all methods of scripted modules, as text.

    Raises:
        UnidentifiedError: a method has none.
    """
    found = []
    for module in modules:
        torch.ops.cache.refresh_fingerprint(native(module))  # the walk may know more of its weights
        for method in sorted(set(module._c._method_names())):
            found.append(f"{method}={fingerprint_of_method(module, method)}")
    return ";".join(found)


def fingerprint_of_method(module: torch.jit.ScriptModule, method: str) -> str:
    """Returns the library's fingerprint. Raises UnidentifiedError if there is none."""
    try:
        return str(torch.ops.cache.fingerprint(native(module), method=method))
    except RuntimeError as error:
        why = f"a scripted module has no fingerprint ({first_line(error)})"
        raise UnidentifiedError(why) from None
