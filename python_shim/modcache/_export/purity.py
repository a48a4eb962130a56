# SPDX-License-Identifier: Apache-2.0
"""Decides whether a module draws random numbers, by the operators that it dispatches.

The rules are those of csrc/module/call/observation.cpp, which observes real runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Drawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``by`` names the first operator that drew random numbers; "" when none did."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.judge(func, args, kwargs)
        return func(*args, **kwargs)

    def judge(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.by and _may_draw(func) and not _is_told_not_to(func, args, kwargs):
            self.by = str(func)


class RecurrentLayers(TorchFunctionMode):
    """Has ``drawn`` judge each LSTM, GRU and RNN as a whole, and hides calls from other modes.

    PyTorch's decompositions in Python leave out their dropout, which real programs draw.
    """

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunction():
            if isinstance(func, torch._ops.OpOverload):
                self._drawn.judge(func, args, kwargs)
            elif name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
                self._drawn.judge(getattr(torch.ops.aten, name).input, args, kwargs)
            return func(*args, **kwargs)


def _may_draw(func: Any) -> bool:
    if func.namespace in ("c10d", "_c10d_functional"):  # depends on other processes
        return True
    return func.namespace != "cache" and torch.Tag.nondeterministic_seeded in func.tags


def _is_told_not_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    is_dropout = "dropout" in func.__name__
    arguments = func._schema.arguments
    values = {one.name: one.default_value for one in arguments if one.has_default_value()}
    values.update(zip([one.name for one in arguments], args, strict=False))
    for name, value in {**values, **kwargs}.items():
        if name in ("train", "training") and value is False:
            return True
        is_probability = name in ("dropout_p", "dropout") or (is_dropout and name == "p")
        if is_probability and value == 0.0 and isinstance(value, float):
            return True
    return False
