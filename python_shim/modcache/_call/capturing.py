# SPDX-License-Identifier: Apache-2.0
"""Calls of transformers' models that ask for hidden states or attentions.

The first such call installs hooks in the model, or in models inside of it, which stay there and do
nothing in other calls. So the look-up begins with that step, too: the call is identified by the
model in which it computes, and a hit leaves the model as a run would.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modcache._call.arguments import Arguments, parted
from modcache._call.evaluation import is_called_plainly
from modcache._code.names import top_package
from modcache._code.wrapped import unwrapped

_IS_DONE = "_output_capturing_hooks_installed"
_BY_ATTENTIONS = ("cross_attentions", "mask_decoder_attentions")


def begin_capturing(module: torch.nn.Module, method: str, input: Any) -> None:
    """Installs the hooks that the call would install."""
    package: Any = sys.modules.get("transformers.utils.output_capturing")
    if package is None or method != "forward" or "config" not in vars(module):
        return
    named = parted(input, input.names)[1] if type(input) is Arguments else {}
    for model in list(_models_asked(module, package, named)):
        package.maybe_install_capturing_hooks(model)


def _models_asked(
    module: torch.nn.Module, package: Any, named: Mapping[str, Any]
) -> Iterator[torch.nn.Module]:
    """Finds the models that look at what is asked for: this one, or those in it."""
    if _IS_DONE in vars(module):
        return
    layers = _layers_of(module)
    wrappers = (layer for layer in layers if "__wrapped__" in vars(layer))
    if any(wrapper.__globals__ is vars(package) for wrapper in wrappers):
        if _is_asked(module, package, named):
            yield module
        return
    for part in module._modules.values() if layers else ():
        if part is not None and "config" in vars(part):
            yield from _models_asked(part, package, named)


def _layers_of(model: torch.nn.Module) -> list[types.FunctionType]:
    """The ``forward`` and what it wraps; empty if a call runs anything else before that."""
    found: list[types.FunctionType] = []
    layer = unwrapped(inspect.getattr_static(type(model), "forward", None))
    if "forward" in vars(model) or not is_called_plainly(model):
        return found
    while isinstance(layer, types.FunctionType):
        if top_package(layer.__globals__.get("__name__")) not in ("torch", "transformers"):
            return []
        found.append(layer)
        layer = vars(layer).get("__wrapped__")
    return found


def _is_asked(model: torch.nn.Module, package: Any, named: Mapping[str, Any]) -> bool:
    """Decides as the package does, by the keywords of the call and the model's settings."""
    try:
        for kind in package._CAN_RECORD_REGISTRY.get(model):
            name = "output_" + ("attentions" if kind in _BY_ATTENTIONS else kind)
            if named.get(name, getattr(model.config, name, False)):
                return True
    except Exception:  # another version of the package; the run will install them, or not
        pass
    return False
