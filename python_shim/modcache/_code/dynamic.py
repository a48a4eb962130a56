# SPDX-License-Identifier: Apache-2.0
"""Code that finds what it uses in ways that cannot be followed by names.

Examples are a module that is found by a computed name, the namespace of a function or a frame, and
the subclasses of a class. Such code is refused with the reason, unless it leads to installed
packages only. A module name that stands in the code as text counts like an import statement.
"""

from __future__ import annotations

import dis
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from modcache._code.names import is_installed_import, top_package
from modcache._code.objects import attribute_of, is_a
from modcache._code.operators import Operator, operator_called
from modcache._code.reads import MISSING, Place, Read, read_of_mode, read_of_operator

# Attributes that lead to whatever a process holds.
_UNBOUNDED = (
    "__globals__", "__subclasses__", "f_back", "f_builtins", "f_globals", "f_locals", "gi_frame",
    "cr_frame", "tb_frame",
)  # fmt: skip
# The same, of functions: by the module that has them.
_UNBOUNDED_FUNCTIONS = {
    "gc": ("get_objects", "get_referents", "get_referrers"),
    "inspect": ("currentframe", "getclosurevars", "getouterframes", "stack", "trace"),
    "sys": ("_current_frames", "_getframe"),
}
_IMPORTING = {"importlib": ("import_module", "__import__")}
# Modes of a thread that are in no address.
_MODES: dict[str, Callable[[], bool]] = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
}


def unbounded_attribute(code: types.CodeType) -> str:
    """Names an attribute in ``code``, also as text, that leads to anything; "" for none."""
    names = {*code.co_names, *(each for each in code.co_consts if type(each) is str)}
    return next((name for name in _UNBOUNDED if name in names), "")


def beyond_names(
    place: Place, code: types.CodeType, name: str, attributes: list[str]
) -> tuple[list[Read], str]:
    """Finds what loading a global reads besides its value, or why that cannot be followed."""
    value = place.names().get(name, MISSING)
    operator = operator_called(value, attributes)
    if isinstance(operator, Operator):
        return [read_of_operator(place, operator)], ""
    if operator:
        return [], operator
    for attribute in attributes:
        if not is_a(value, types.ModuleType):
            break
        name, value = attribute, vars(value).get(attribute, MISSING)
    mode = _mode_asked_for(value)
    return ([read_of_mode(place, name, mode)], "") if mode else ([], _refusal_of(code, value, name))


def _refusal_of(code: types.CodeType, value: object, name: str) -> str:
    """Says why ``value``, which ``code`` loads as ``name``, cannot be followed; "" if it can."""
    if _is_one_of(value, _UNBOUNDED_FUNCTIONS):
        return f"its code calls {name}()"
    if _is_one_of(value, _IMPORTING):
        return _refusal_of_modules(code, name, f"its code imports by {name}()")
    if value is sys.modules:
        shown = "sys.modules" if name == "modules" else name
        return _refusal_of_modules(code, name, f"its code reads {shown}")
    return ""


def _mode_asked_for(value: object) -> Callable[[], bool] | None:
    """Returns the function if it asks for a mode of the thread that is in no address."""
    name = attribute_of(value, "__name__")
    function = _MODES.get(name) if is_a(name, str) else None
    return function if function is value else None


def _is_one_of(value: object, functions: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether ``value`` is one of the functions. Modules that are not loaded are not imported."""
    name = attribute_of(value, "__name__")
    if not is_a(name, str):
        return False
    for module, names in functions.items():
        if name in names and vars(sys.modules.get(module, torch)).get(name) is value:
            return True
    return False


def _refusal_of_modules(code: types.CodeType, name: str, what: str) -> str:
    asked = _names_asked_of(code, name)
    foreign = [each for each in asked if each is None or not _is_installed(each)]
    if not foreign:
        return ""
    return what if foreign[0] is None else f"{what}, namely {foreign[0]}"


def _is_installed(name: str) -> bool:
    """Whether a module is installed, or is not there at all, as an optional package may be."""
    if is_installed_import(name):
        return True
    if name in sys.modules or name.startswith("."):
        return False
    try:
        return importlib.util.find_spec(top_package(name)) is None
    except (ImportError, ValueError):
        return False


def _names_asked_of(code: types.CodeType, name: str) -> list[str | None]:
    """The texts that stand beside each load of ``name`` in ``code``; None for a computed one.

    ``name`` is called with the text, or is asked by ``[...]``, ``.get(...)`` or ``in``.
    """
    found: list[str | None] = []
    instructions: list[Any] = [
        each
        for each in dis.get_instructions(code)
        if each.opname not in ("CACHE", "PRECALL", "PUSH_NULL", "RESUME", "EXTENDED_ARG")
    ]
    for index, instruction in enumerate(instructions):
        if not instruction.opname.startswith("LOAD_") or instruction.argval != name:
            continue
        if instruction.opname in ("LOAD_CONST", "LOAD_FAST"):
            continue
        after = instructions[index + 1 : index + 3]
        if after and after[0].opname in ("LOAD_ATTR", "LOAD_METHOD") and after[0].argval == "get":
            after = after[1:]
        if after and after[0].opname == "CONTAINS_OP":
            after = _loads_before(instructions[:index])
        text = after[0].argval if after and after[0].opname == "LOAD_CONST" else None
        found.append(text if type(text) is str else None)
    return found


def _loads_before(instructions: list[Any]) -> list[Any]:
    """Finds the load before that of ``sys.modules``, or of ``modules``."""
    if instructions and instructions[-1].argval == "sys":
        instructions = instructions[:-1]
    return instructions[-1:]
