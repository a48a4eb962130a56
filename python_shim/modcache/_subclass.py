# SPDX-License-Identifier: Apache-2.0
"""Tensor subclasses, and inputs that TorchScript has no type for: they pass through uncached.

A subclass may carry a meaning that its bytes lack, so a result or input of one is never looked up
or kept. The library is shown a stand-in, which it refuses and counts like any value it cannot
store.
"""

from __future__ import annotations

from typing import Any

import torch

_SIMPLE = frozenset({torch.Tensor, int, float, bool, str, type(None)})
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def is_subclass(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) not in _PLAIN


def holds_subclass(value: Any) -> bool:
    """Whether ``value`` is such a tensor, or a tuple, list or dict with one in it."""
    if type(value) is torch.Tensor:
        return False
    if isinstance(value, (tuple, list)):
        return any(map(holds_subclass, value))
    if isinstance(value, dict):
        return any(map(holds_subclass, value.values()))
    return is_subclass(value)


def is_refused(value: Any) -> bool:
    """Whether the library cannot be given this input: a tensor subclass, or not TorchScript's."""
    if type(value) is torch.Tensor:
        return False
    return holds_subclass(value) or not (_fits(value) and _is_inferred(value))


def _is_inferred(value: Any) -> bool:
    if type(value) in _SIMPLE:
        return True
    if type(value) is tuple and all(type(part) in _SIMPLE for part in value):
        return True
    try:
        return bool(torch._C._jit_try_infer_type(value).success())
    except Exception:  # what an object's own methods raise is no concern of the caller
        return False


def _fits(value: Any) -> bool:
    """Whether whole numbers have 64 bits at most, text is Unicode, and nothing is bytes."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, bytes):  # the library would take it for text
        return False
    if isinstance(value, (tuple, list)):
        return all(map(_fits, value))
    if isinstance(value, dict):
        return all(map(_fits, value)) and all(map(_fits, value.values()))
    return True


class _StandIn(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{function} on a value that is only looked at")


def stand_in() -> torch.Tensor:
    """What the library sees in place of a tensor subclass."""
    return torch.Tensor._make_wrapper_subclass(_StandIn, (0,))
