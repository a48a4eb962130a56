# SPDX-License-Identifier: Apache-2.0
"""freeze: makes a scripted model ready to deploy, and keeps its cached calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modcache._identity.scripted import native


def freeze(
    scripted: torch.jit.ScriptModule,
    preserved_attrs: Sequence[str] | None = None,
    *,
    optimize_numerics: bool = True,
) -> torch.jit.ScriptModule:
    """Makes a lowered and frozen copy of the model, like ``torch.jit.freeze``, with cached calls.

    ``torch.jit.freeze`` alone drops the encoder's code, which only the operator calls. This
    function first writes each ``lookup_or_run`` out as graph (``torch.ops.cache.lower``), so that
    freezing includes the encoder. The scope is fixed to its present value: the frozen model, also
    saved and loaded elsewhere, hits entries of this model and of its scripted, loaded and C++
    forms. A hit does not touch the encoder. ``torch.jit.optimize_for_inference`` takes the result.

    Args:
        scripted: a scripted, traced or loaded model in evaluation mode. It is not changed.
        preserved_attrs: methods and attributes to keep beside ``forward``; by default all methods
            of the model that were exported or compiled.
        optimize_numerics: as for ``torch.jit.freeze``: also allows passes that change rounding.

    Raises:
        TypeError: no ScriptModule.
        RuntimeError: a model in training mode, or a call that cannot be lowered; the message says
            why.
    """
    if not isinstance(scripted, torch.jit.ScriptModule):
        cure = (
            "Script or trace it first: torch.jit.script(model.eval())."
            if isinstance(scripted, torch.nn.Module)
            else "Pass a scripted, traced or loaded model."
        )
        raise TypeError(
            "freeze: scripted must be a torch.jit.ScriptModule, but got "
            f"{type(scripted).__name__}. {cure}"
        )
    if getattr(scripted, "training", False):  # a frozen model has no such attribute
        raise RuntimeError(
            "freeze: the model is in training mode, and freezing is for inference; call "
            "scripted.eval() first."
        )
    if preserved_attrs is None:
        names = set(native(scripted)._method_names())
        kept = sorted(name for name in names if name != "forward" and not name.startswith("__"))
    else:
        kept = list(preserved_attrs)
    frozen = torch.ops.cache._freeze(native(scripted), kept, optimize_numerics)
    wrap: Any = torch.jit._recursive.wrap_cpp_module
    return wrap(frozen)  # type: ignore[no-any-return]
