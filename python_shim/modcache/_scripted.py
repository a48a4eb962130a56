# SPDX-License-Identifier: Apache-2.0
"""Scripted modules inside an eager one.

Python code may call any of their methods and read any of their attributes, so all of both count,
down to their submodules. The walk collects what they hold; their code is the library's knowledge.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from modcache._kinds import UnidentifiedError

SCRIPTED: type = torch.jit._script.RecursiveScriptModule
_INTERNAL = frozenset(
    {
        *vars(torch.nn.Module()), "_c", "_concrete_type", "_initializing", "_actual_script_module",
        "_is_full_backward_hook",
    }
)  # fmt: skip


def native(module: torch.nn.Module) -> Any:
    """The scripted module as operators are to be given it.

    Of one that is passed as it is, torch takes a reference too many, and never frees it.
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

    def _note_names(self, module: torch.jit.ScriptModule) -> None:
        held = vars(module)
        self._names = frozenset(held)
        self._methods = [name for name in held if type(held[name]) is torch._C.ScriptMethod]

    def fits(self, module: torch.jit.ScriptModule) -> bool:
        if self._module() is not module or self._native != id(module._c):
            return False
        held = vars(module)
        if held.keys() != self._names:  # methods are put there at their first use
            if _python_attributes(module) != self.python_attributes:
                return False
            self._note_names(module)
        return all(type(held[name]) is torch._C.ScriptMethod for name in self._methods)

    def is_alive(self) -> bool:
        return self._module() is not None


def _python_attributes(module: torch.jit.ScriptModule) -> list[str]:
    """What was put on the Python side.

    Containers have methods there that are bound to the module that was scripted, and hand out its
    submodules.
    """
    return sorted(
        name
        for name, value in vars(module).items()
        if name not in _INTERNAL and type(value) is not torch._C.ScriptMethod
    )


def code_of_scripted(modules: Iterable[torch.jit.ScriptModule]) -> str:
    """The fingerprints of all their methods.

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
    """The library's fingerprint. Raises UnidentifiedError when there is none."""
    try:
        return str(torch.ops.cache.fingerprint(native(module), method=method))
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0].removeprefix("cache::lookup_or_run: ")
        raise UnidentifiedError(f"a scripted module has no fingerprint ({reason})") from None
