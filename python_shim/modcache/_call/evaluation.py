# SPDX-License-Identifier: Apache-2.0
"""Calls that begin by putting modules into evaluation mode, as ``encode`` often does.

Such a call computes the same from either mode, and leaves these modules in evaluation mode. So the
look-up begins with that step, too: the call is identified by the mode in which it computes, and a
hit leaves the modules as a run would. A call does so if every way through its code comes to
``self.eval()``, or ``model.eval()`` of a global, before it reads anything else or calls anything;
or if the method is known to (``_code/libraries.py``). A step that would do more than switch the
mode, or a call that may look at the mode before its method begins, is left alone.
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
import weakref
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from modcache._call.call_forms import is_of_torch
from modcache._call.grad import modules_in
from modcache._call.holder import Holder
from modcache._code.libraries import known_method
from modcache._code.objects import attribute_of, is_a
from modcache._code.wrapped import is_cached, is_left_here, unwrapped
from modcache._identity.manifest import class_name
from modcache._identity.module_state import ModuleState

# Instructions that only move arguments, constants and globals, or compare them.
_HARMLESS = frozenset(
    {
        "CACHE",
        "COMPARE_OP",
        "COPY_FREE_VARS",
        "IS_OP",
        "JUMP_FORWARD",
        "LOAD_CONST",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_CHECK",
        "LOAD_GLOBAL",
        "LOAD_SMALL_INT",
        "MAKE_CELL",
        "NOP",
        "NOT_TAKEN",
        "POP_JUMP_FORWARD_IF_FALSE",
        "POP_JUMP_FORWARD_IF_NONE",
        "POP_JUMP_FORWARD_IF_NOT_NONE",
        "POP_JUMP_FORWARD_IF_TRUE",
        "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_NONE",
        "POP_JUMP_IF_NOT_NONE",
        "POP_JUMP_IF_TRUE",
        "RESUME",
        "STORE_FAST",
        "TO_BOOL",
    }
)
_LOADS = frozenset(
    {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_GLOBAL"}
)
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_BETWEEN = frozenset({"CACHE", "PRECALL", "PUSH_NULL"})
_CALLING = ("__call__", "_wrapped_call_impl", "_call_impl")
_SWITCHING = ("eval", "train")


def begin_evaluation(module: torch.nn.Module, method: str) -> bool:
    """Puts modules into evaluation mode if the call would begin with that.

    Returns:
        Whether the method is known to compute without gradients.
    """
    function, owner = _function_behind(module, method)
    if not isinstance(function, types.FunctionType):
        return False
    known = known_method(function)
    if not known.infers:
        _evaluate_first(function, owner, module, method)
    elif method != "forward" or is_called_plainly(module):
        _evaluate(owner)
        _settle(owner, known.settled)
    return known.infers


def note_beginning(state: ModuleState, module: torch.nn.Module, method: str) -> None:
    """Notes the function of a method that is certain not to begin with evaluation.

    The compiled part may begin calls of it, as long as the class has that function.
    """
    if method in state.functions or method in vars(module):
        return
    function = _defined(type(module), method)
    if not isinstance(function, types.FunctionType) or is_cached(function):
        return
    if not _may_evaluate(function) and not known_method(function).infers:
        state.class_name = class_name(module)
        state.functions[method] = weakref.ref(function)


def _may_evaluate(function: types.FunctionType) -> bool:
    # Nearly all functions end at this question, which is the cheapest one.
    return "eval" in function.__code__.co_names or "__wrapped__" in function.__dict__


def _evaluate_first(
    function: types.FunctionType, owner: Any, module: torch.nn.Module, method: str
) -> None:
    if not _may_evaluate(function):
        return
    inner = _undecorated(function)
    paths = _paths_in(inner.__code__) if inner is not None else ()
    if inner is None or not paths or (method == "forward" and not is_called_plainly(module)):
        return
    for path in paths:
        if not _evaluate(_module_at(path, inner, owner)):
            break


def _function_behind(module: torch.nn.Module, method: str) -> tuple[Any, Any]:
    """Finds the function that runs, and the object that it gets first; None: there is none."""
    if not isinstance(module, Holder):
        if method in vars(module):
            return None, None
        return unwrapped(_defined(type(module), method)), module
    held = vars(module).get("forward")
    if isinstance(held, functools.partial) and len(held.args) == 2:  # a method of an object
        reference, function = held.args
        return function, reference() if isinstance(reference, weakref.ref) else None
    return unwrapped(held), None


def _defined(kind: type, name: str) -> Any:
    """What inspect.getattr_static finds in a class, for a tenth of its price."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def is_called_plainly(module: torch.nn.Module) -> bool:
    """Whether a call of the module runs nothing before its ``forward``."""
    return (
        not module._forward_pre_hooks
        and not torch_module._global_forward_pre_hooks
        and all(_member(type(module), name) is _of_torch(name) for name in _CALLING)
        and vars(module).keys().isdisjoint(_CALLING)
    )


def _evaluate(module: object) -> bool:
    """Returns False, and does nothing, if its ``eval`` might do more than switch the mode."""
    if not is_a(module, torch.nn.Module) or not all(map(_only_switches, modules_in(module))):
        return False
    if any(part.training for part in modules_in(module)):
        module.eval()
    return True


def _settle(owner: object, names: tuple[str, ...]) -> None:
    for name in names:
        if isinstance(_defined(type(owner), name), property):
            getattr(owner, name)


def _only_switches(part: torch.nn.Module) -> bool:
    """Whether ``eval`` and ``train`` of this part do nothing else, and may run once more."""
    return vars(part).keys().isdisjoint(_SWITCHING) and all(
        (member := _member(type(part), name)) is _of_torch(name) or known_method(member).switches
        for name in _SWITCHING
    )


def _of_torch(name: str) -> Any:
    return vars(torch.nn.Module)[name]


def _member(kind: type, name: str) -> Any:
    """What a class has under the name, without what modcache.cached put there."""
    found = (vars(base)[name] for base in kind.__mro__ if name in vars(base))
    return next((member for member in found if not is_left_here(member)), None)


def _module_at(path: tuple[str, ...], function: types.FunctionType, owner: Any) -> Any:
    """Finds what a path such as ("LOAD_GLOBAL", "model", "encoder") leads to."""
    kind, name, *attributes = path
    code = function.__code__
    if kind == "LOAD_GLOBAL":
        found = function.__globals__.get(name)
    elif name in code.co_freevars:
        found = _in_cell(function, code.co_freevars.index(name))
    else:
        found = owner if code.co_argcount and name == code.co_varnames[0] else None
    for attribute in attributes:
        if hasattr(type(found), attribute):  # a property is code
            return None
        own = attribute_of(found, "__dict__", {})
        found = own.get(attribute, own.get("_modules", {}).get(attribute))
    return found


def _in_cell(function: types.FunctionType, index: int) -> Any:
    try:
        return (function.__closure__ or ())[index].cell_contents
    except ValueError:  # not filled yet
        return None


def _undecorated(function: types.FunctionType) -> types.FunctionType | None:
    """The function behind torch's own decorators; None if there are others."""
    while is_of_torch(function):
        function = function.__wrapped__  # type: ignore[attr-defined]
    is_plain = type(function) is types.FunctionType and not hasattr(function, "__wrapped__")
    return function if is_plain else None


@functools.lru_cache(maxsize=1024)
def _paths_in(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Finds whose ``eval()`` is called first, on every way through the code."""
    found: list[tuple[str, ...]] = []
    stored: set[str] = set()
    if "eval" not in code.co_names:
        return ()
    index = farthest = 0
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    while index < len(steps):
        step = steps[index]
        path = _path_of_eval(steps[index:])
        if path:
            if farthest > step.offset or path[1] in stored:
                break
            found.append(path)
            index += len(path) + 2
            continue
        if step.opname not in _HARMLESS:
            break
        if step.opname == "STORE_FAST":
            stored.add(step.argval)
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            farthest = max(farthest, int(step.argval))
        index += 1
    return tuple(found)


def _path_of_eval(steps: list[dis.Instruction]) -> tuple[str, ...]:
    """The path to X, if these instructions begin with the statement ``X.eval()``; else ()."""
    names = itertools.takewhile(lambda step: step.opname in _ATTRIBUTES, steps[1:])
    attributes = [str(step.argval) for step in names]
    end = steps[len(attributes) + 1 :][:2]
    if steps[0].opname not in _LOADS or attributes[-1:] != ["eval"] or len(end) < 2:
        return ()
    call, drop = end
    if call.opname != "CALL" or call.arg != 0 or drop.opname != "POP_TOP":
        return ()
    return (steps[0].opname, str(steps[0].argval), *attributes[:-1])
