# SPDX-License-Identifier: Apache-2.0
"""Methods that begin by putting their module into evaluation mode, as ``encode`` often does.

Such a call computes the same from either mode, and leaves its module in evaluation mode. So the
look-up begins with that step, too: the call is identified by the mode in which it computes, and a
hit leaves the module as a run would. A method does so if every way through its code comes to
``self.eval()`` before it reads an attribute or calls anything, or if it is known to
(``_code/libraries.py``).
"""

from __future__ import annotations

import dis
import functools
import types

import torch

from modcache._call.arguments import is_of_torch
from modcache._call.grad import modules_in
from modcache._code.libraries import known_method
from modcache._code.wrapped import unwrapped

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
_SELF = frozenset({"LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_BETWEEN = frozenset({"CACHE", "PRECALL", "PUSH_NULL"})


def begin_evaluation(module: torch.nn.Module, method: str) -> bool:
    """Puts a module into evaluation mode if the method would begin with that.

    Returns:
        Whether the method is known to compute without gradients.
    """
    function = unwrapped(getattr(type(module), method, None))
    if method in vars(module) or not isinstance(function, types.FunctionType):
        return False
    infers = known_method(function).infers
    if (infers or _begins_with_eval(function)) and _may_begin(module, method):
        module.eval()
    return infers


def _may_begin(module: torch.nn.Module, method: str) -> bool:
    """Whether anything is in training mode, and no hook runs before the method."""
    is_plain = type(module).eval is torch.nn.Module.eval and "eval" not in vars(module)
    if not is_plain or (method == "forward" and module._forward_pre_hooks):
        return False
    return any(part.training for part in modules_in(module))


def _begins_with_eval(function: types.FunctionType) -> bool:
    while is_of_torch(function):  # no_grad and similar ones
        function = function.__wrapped__  # type: ignore[attr-defined]
    is_plain = type(function) is types.FunctionType and not hasattr(function, "__wrapped__")
    return is_plain and _code_begins_with_eval(function.__code__)


@functools.lru_cache(maxsize=1024)
def _code_begins_with_eval(code: types.CodeType) -> bool:
    if "eval" not in code.co_names or not code.co_argcount:
        return False
    this, farthest = code.co_varnames[0], 0
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    for index, step in enumerate(steps):
        if step.opname in _SELF and step.argval == this:
            return farthest <= step.offset and _is_call_of_eval(steps[index + 1 : index + 4])
        if step.opname not in _HARMLESS or (step.opname == "STORE_FAST" and step.argval == this):
            return False
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            farthest = max(farthest, int(step.argval))
    return False


def _is_call_of_eval(steps: list[dis.Instruction]) -> bool:
    """Whether these instructions are the statement ``self.eval()`` after its ``self``."""
    if len(steps) < 3 or steps[0].opname not in ("LOAD_ATTR", "LOAD_METHOD"):
        return False
    name, call, drop = steps
    return (
        name.argval == "eval"
        and call.opname == "CALL"
        and call.arg == 0
        and drop.opname == "POP_TOP"
    )
