# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length, in batches that were padded to the longest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from modcache._call.arguments import Arguments, parted
from modcache._call.carriers import is_array
from modcache._call.parts import data_in
from modcache._identity.wrappers import identified_as


class Padding(NamedTuple):
    """What a caller says of the rows of one batch, as methods of the library take it."""

    mask: torch.Tensor | None  # [B, longest]
    lengths: torch.Tensor | None  # [B]
    # The size that rows with lengths were padded to; -1: none are padded, and the results of two
    # rows may differ in shape.
    longest: int
    value: float

    @property
    def is_padded(self) -> bool:
        return self.mask is not None or self.lengths is not None

    def padded_to(self) -> int:
        """Returns the size of padded dimensions; -1: no rows are padded."""
        if self.mask is not None and not self.mask.is_nested and self.mask.dim() == 2:
            return self.mask.shape[1]
        return -1 if self.lengths is None else self.longest


WHOLE_ROWS = Padding(None, None, 0, 0.0)
RAGGED_ROWS = Padding(None, None, -1, 0.0)


def padding_of(
    module: torch.nn.Module | None,
    method: str,
    input: Any,
    mask: str | int | torch.Tensor | None,
    lengths: str | int | torch.Tensor | None,
    pad_value: float,
) -> Padding:
    """Finds mask or lengths among the arguments of a call, where they are not given as tensors.

    ``module``: None where it is not loaded, so that nothing tells the names of its parameters.

    Raises:
        ValueError: both are given, or the call has no such argument.
        TypeError: the argument is no tensor, or ``pad_value`` no number.
    """
    if mask is None and lengths is None:
        return WHOLE_ROWS
    if mask is not None and lengths is not None:
        raise ValueError("lookup_or_run: mask and lengths say the same; give one of them.")
    check_pad_value(pad_value)
    name = "mask" if lengths is None else "lengths"
    found = argument_of(module, method, input, mask if lengths is None else lengths, name)
    if found is None:  # the caller left the argument out
        return WHOLE_ROWS
    if lengths is None:
        return Padding(found, None, 0, float(pad_value))
    sizes = {data.shape[1] for data in data_in(_values_of(input)) if len(data.shape) > 1}
    if len(sizes) != 1:
        raise ValueError(
            "lengths: the size that the batch was padded to cannot be told, since the second "
            f"dimensions of the input have the sizes {sorted(sizes)}; give a mask, [B, longest]."
        )
    return Padding(None, found, sizes.pop(), float(pad_value))


def why_not_padded(input: Any) -> str:
    """Returns why rows of an input cannot be cut to their lengths; "": they can."""
    if any(map(is_array, data_in(input))):
        return "its input holds a NumPy array beside a mask; pass torch.from_numpy(array)"
    return ""


def check_pad_value(pad_value: Any) -> None:
    if isinstance(pad_value, bool) or not isinstance(pad_value, (int, float)):
        raise TypeError(f"pad_value must be a number, but is a {type(pad_value).__name__}.")


def argument_of(
    module: torch.nn.Module | None, method: str, input: Any, which: Any, name: str
) -> torch.Tensor | None:
    """Finds the argument that ``which``, given as ``name``, is or says; None: it was left out.

    Raises:
        ValueError, TypeError: as ``padding_of``.
    """
    if isinstance(which, torch.Tensor):
        return which
    places, names = _parts_of(input)
    if isinstance(which, int) and not isinstance(which, bool):
        if not 0 <= which < len(places):
            raise ValueError(
                f"{name}={which}: the call has {len(places)} arguments by place; count from 0."
            )
        value = places[which]
    elif isinstance(which, str):
        parameters = [] if module is None else parameters_of(module, method)
        if which in names:
            value = names[which]
        elif module is None:
            raise ValueError(
                f"{name}={which!r}: no argument of the call has this name, and which place it has "
                "is not known, since the lazy module is not loaded; give the place, "
                f"{name}=1 for the second argument, or the tensor, or pass the argument by name."
            )
        elif which in parameters:
            place = parameters.index(which)
            value = places[place] if place < len(places) else None
        else:
            known = ", ".join(dict.fromkeys([*parameters, *names]))
            raise ValueError(f"{name}={which!r}: there is no such argument; there are: {known}.")
    else:
        raise TypeError(
            f"{name} must be the name or the place of an argument, or a tensor, but is a "
            f"{type(which).__name__}."
        )
    if value is None or isinstance(value, torch.Tensor):
        return value
    raise TypeError(f"{name}={which!r} must be a tensor, but is a {type(value).__name__}.")


def _parts_of(input: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Returns the arguments by place and by name. Items of a lone dict count as named."""
    if type(input) is Arguments:
        return parted(tuple(input), input.names)
    places = input if isinstance(input, tuple) else (input,)
    lone = places[0] if len(places) == 1 else None
    return places, lone if isinstance(lone, Mapping) else {}


def _values_of(input: Any) -> Any:
    places, names = _parts_of(input)
    return (*places, *names.values())


def parameters_of(module: torch.nn.Module, method: str) -> list[str]:
    """Returns the names of the parameters that a method declares."""
    target = identified_as(module)
    if isinstance(target, torch.jit.ScriptModule):
        schema: Any = target._c._get_method(method).schema
        return [argument.name for argument in schema.arguments[1:]]
    function: Callable[..., Any] = getattr(target, method)
    return list(inspect.signature(function).parameters)
