# SPDX-License-Identifier: Apache-2.0
"""A run of a module for what it teaches: as a copy, on fake tensors, seen by no recorder."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch

from modcache._arguments import parted
from modcache._digest import difference
from modcache._export_purity import Drawn, RecurrentLayers
from modcache._export_scope import PlainCallError, held_tensors
from modcache._plain import plain_method
from modcache._records import Records
from modcache._walk import Walk

# Stands for a tensor in the template of an input.
TENSOR = "modcache:tensor"


def without_wrapper(tensor: torch.Tensor) -> torch.Tensor:
    if torch._is_functional_tensor(tensor):
        return torch._from_functional_tensor(tensor)
    return getattr(tensor, "elem", tensor) if _is_functional(tensor) else tensor


def _is_functional(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FunctionalTensor"


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
    """What the module returns, of fake tensors. The module itself is left alone.

    ``names``: of the last arguments, which the module gets by name.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(tensors)
    if mode is None:
        raise PlainCallError("the recorder uses no fake tensors")
    symbols = mode.shape_env.ignore_fresh_unbacked_symbols if mode.shape_env is not None else None
    with mode, symbols() if symbols is not None else contextlib.nullcontext():
        stand_ins = {number: _stand_in(held) for number, (_, held) in held_tensors(module).items()}
        given = [tensor.clone() for tensor in tensors]
    try:
        double = copy.deepcopy(module, dict(stand_ins))
    except Exception as error:
        raise PlainCallError(f"it cannot be copied to be tried ({error})") from None
    before = Walk(double, Records(), is_tolerant=True)
    watched = [*stand_ins.values(), *given]
    versions = [tensor._version for tensor in watched]
    drawn = Drawn()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mode)
        if symbols is not None:
            stack.enter_context(symbols())
        # As recorders do, dynamo included: the C++ decompositions of some operators fix sizes.
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(drawn)
        stack.enter_context(torch._C._EnableTorchFunction())
        stack.enter_context(RecurrentLayers(drawn))
        whole = filled(template, iter(given))
        arguments, by_name = parted(whole if isinstance(whole, tuple) else (whole,), names)
        run = plain_method(double, method)
        if run is None:
            run = double if method == "forward" else getattr(double, method)
        try:
            outcome = run(*arguments, **by_name)
        except Exception as error:  # recording the module itself tells the user
            raise PlainCallError(f"it does not run on fake tensors ({error})") from None
    if drawn.by:
        raise PlainCallError(f"random numbers were drawn by {drawn.by}")
    if versions != [tensor._version for tensor in watched]:
        raise PlainCallError("a run changes its tensors or its input in place")
    changed = difference(before, Walk(double, before._records, is_tolerant=True))
    if changed:
        raise PlainCallError(f"a run changes it: {changed}")
    return outcome


def _stand_in(held: torch.Tensor) -> torch.Tensor:
    held = without_wrapper(held)
    made = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device=held.device)
    if isinstance(held, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=held.requires_grad)
    return made.requires_grad_(held.requires_grad)
