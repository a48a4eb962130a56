# SPDX-License-Identifier: Apache-2.0
"""Runs a copy of a module on fake tensors, unseen by recorders, to study it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch

from modcache._call.arguments import parted
from modcache._code.wrapped import unwrapped_method
from modcache._export.purity import Drawn, RecurrentLayers
from modcache._export.scope import UncachedCallError, held_tensors
from modcache._identity.digest import difference
from modcache._identity.records import Records
from modcache._identity.walk import Walk

# Replaces a tensor in the template of an input.
TENSOR = "modcache:tensor"


def without_wrapper(tensor: torch.Tensor) -> torch.Tensor:
    if torch._is_functional_tensor(tensor):
        return torch._from_functional_tensor(tensor)
    is_functional = type(tensor).__name__ == "FunctionalTensor"
    return getattr(tensor, "elem", tensor) if is_functional else tensor


def filled(template: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(template, str) and template == TENSOR:
        return next(tensors)
    if isinstance(template, (tuple, list)):
        return type(template)(filled(part, tensors) for part in template)
    if isinstance(template, dict):
        return {name: filled(part, tensors) for name, part in template.items()}
    return template


def tried(
    module: torch.nn.Module,
    template: Any,
    names: tuple[str, ...],
    tensors: list[torch.Tensor],
    method: str,
) -> Any:
    """Returns the module's result as fake tensors. The module itself does not run.

    ``names``: the names of the last arguments.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(tensors)
    if mode is None:
        raise UncachedCallError("the recorder uses no fake tensors")
    symbols = mode.shape_env.ignore_fresh_unbacked_symbols if mode.shape_env is not None else None
    with mode, symbols() if symbols is not None else contextlib.nullcontext():
        stand_ins = {number: _stand_in(held) for number, (_, held) in held_tensors(module).items()}
        given = [tensor.clone() for tensor in tensors]
    try:
        double = copy.deepcopy(module, dict(stand_ins))
    except Exception as error:
        raise UncachedCallError(f"it cannot be copied to be tried ({error})") from None
    before = Walk(double, Records(), is_tolerant=True)
    watched = [*stand_ins.values(), *given]
    versions = [tensor._version for tensor in watched]
    drawn = Drawn()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mode)
        if symbols is not None:
            stack.enter_context(symbols())
        # Recorders use it, too, since C++ decompositions of some operators fix sizes.
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(drawn)
        stack.enter_context(torch._C._EnableTorchFunction())
        stack.enter_context(RecurrentLayers(drawn))
        try:
            outcome = called(double, filled(template, iter(given)), names, method)
        except Exception as error:  # recording the module itself tells the user
            raise UncachedCallError(f"it does not run on fake tensors ({error})") from None
    if drawn.by:
        raise UncachedCallError(f"random numbers were drawn by {drawn.by}")
    if versions != [tensor._version for tensor in watched]:
        raise UncachedCallError("a run changes its tensors or its input in place")
    changed = difference(before, Walk(double, before.records, is_tolerant=True))
    if changed:
        raise UncachedCallError(f"a run changes it: {changed}")
    return outcome


def called(module: torch.nn.Module, input: Any, names: tuple[str, ...], method: str) -> Any:
    """Runs the module without the cache. ``names``: the names of the last arguments."""
    arguments, by_name = parted(input if isinstance(input, tuple) else (input,), names)
    if plain := unwrapped_method(module, method):
        return plain(*arguments, **by_name)
    if method == "forward":
        return module(*arguments, **by_name)
    return getattr(module, method)(*arguments, **by_name)


def _stand_in(held: torch.Tensor) -> torch.Tensor:
    held = without_wrapper(held)
    made = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device=held.device)
    if isinstance(held, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=held.requires_grad)
    return made.requires_grad_(held.requires_grad)
