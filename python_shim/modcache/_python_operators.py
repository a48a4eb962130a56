# SPDX-License-Identifier: Apache-2.0
"""What runs behind ``torch.ops`` where that was written in Python.

torch tells an operator by its name alone, and so does an operator of C++ here. One that
``torch.library.custom_op`` made is its functions. Of kernels that ``torch.library.Library.impl``
registered torch keeps no function that could be found: such an operator identifies nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from modcache._kinds import Mark, UnidentifiedError

if TYPE_CHECKING:
    from modcache._walk import Walk

_NAMED = Mark("named")
_OPERATOR = Mark("operator")

# Attributes of a custom_op's definition besides its kernels, and those.
PARTS = ("_init_fn", "_disabled_kernel", "_autocast_dtype")
KERNELS = "_backend_fns"
_EMPTY = types.CellType()
_DEEPEST = 6  # closures
# Whose kernels in Python belong to torch, and are told by its name. Those of "aten" are fakes.
_OF_TORCH = frozenset(
    {
        "prims", "debugprims", "rngprims", "streams", "c10d", "c10d_functional", "_native",
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem", "inductor",
        "higher_order", "onednn", "mkldnn", "mkl", "quantized", "quantized_decomposed", "cache",
        "profiler", "debug_mode_ops", "fsdp", "bucketing", "_inductor_test", "torch_attn",
    }
)  # fmt: skip
_NO_OPERATORS = frozenset({"load_library", "import_module", "loaded_libraries"})


class Operator:
    """An operator that code calls, as a value to be looked at. ``name`` is "namespace::name"."""

    def __init__(self, name: str) -> None:
        self.name = name


def operator_called(value: object, attributes: list[str]) -> Operator | str | None:
    """What ``value`` with these attributes calls: an operator; text that says why it is unknown.

    None: nothing of ``torch.ops``.
    """
    namespace: Any = value
    path = list(attributes)
    while isinstance(namespace, types.ModuleType) and namespace is not torch.ops and path:
        if isinstance(namespace, torch._ops._OpNamespace):
            break
        namespace = vars(namespace).get(path.pop(0))
    if isinstance(namespace, torch._ops._OpNamespace):
        path.insert(0, namespace.name)
    elif namespace is not torch.ops:
        return None
    if path and path[0] in _NO_OPERATORS:
        return None
    if len(path) >= 2:
        return Operator(f"{path[0]}::{path[1]}")
    if path and (path[0] in _OF_TORCH or path[0] == "aten"):
        return None
    return "its code finds an operator of torch.ops by a computed name"


def definition_of(name: str) -> Any:
    """What ``torch.library.custom_op`` made under this name; None for every other operator."""
    return definitions().get(name)


def definitions() -> Any:
    """By name, weakly."""
    return getattr(getattr(torch._library, "custom_ops", None), "OPDEFS", {})


def definitions_behind(module: types.ModuleType, chain: tuple[str, ...]) -> Iterator[object]:
    """The definition of the operator that a chain of attributes names, read from ``module``."""
    path = chain if module is torch else ("ops", *chain) if module is torch.ops else ()
    if len(path) < 3 or path[0] != "ops":
        return
    definition = definition_of(f"{path[1]}::{path[2]}")
    if definition is not None:
        yield definition


def parts_of(value: Any) -> tuple[str, list[object]] | None:
    """The name of such a definition and the functions behind it; None for anything else."""
    if not is_definition(type(value)):
        return None
    return str(value._qualname), [value._init_fn, *getattr(value, KERNELS, {}).values()]


def unseen_kernel_of(name: str) -> str:
    """Says why nothing is known of an operator; "" where its functions or its name tell."""
    is_told = name.partition("::")[0] in _OF_TORCH or definition_of(name) is not None
    if is_told or name not in _with_kernels_in_python():
        return ""
    return f"the operator {name} has a kernel in Python that torch does not show"


def _with_kernels_in_python() -> frozenset[str]:
    """Names of the operators that have kernels in Python besides those that only tell shapes."""
    global _noted
    entries: Any = getattr(torch.library, "_impls", ())
    if _noted[0] != len(entries):
        split = [entry.split("/") for entry in entries if not entry.endswith("/Meta")]
        names = (f"{parts[0]}::{parts[1].partition('.')[0]}" for parts in split)
        _noted = (len(entries), frozenset(names))
    return _noted[1]


_noted: tuple[int, frozenset[str]] = (-1, frozenset())  # of how many entries


def look_at_operator(walk: Walk, value: Operator) -> None:
    reason = unseen_kernel_of(value.name)
    if reason:
        raise UnidentifiedError(reason)
    walk.leaves += (_OPERATOR, value.name)
    definition = definition_of(value.name)
    if definition is not None:
        look_at_definition(walk, definition)


def look_at_overload(walk: Walk, value: Any) -> None:
    """``torch.ops.namespace.name``, or one of its overloads."""
    walk.leaves += (_NAMED, walk.named(type(value)), str(value))
    name = str(getattr(value, "_qualified_op_name", "") or value.name()).partition(".")[0]
    if definition_of(name) is not None or unseen_kernel_of(name):
        look_at_operator(walk, Operator(name))


def look_at_definition(walk: Walk, value: Any) -> None:
    walk.leaves += (_OPERATOR, str(value))
    for part in PARTS:
        walk.value(getattr(value, part, None))
    for device, kernel in getattr(value, KERNELS, {}).items():
        walk.leaves.append(device)
        walk.value(functions_inside(kernel))


def functions_inside(kernel: object) -> list[types.FunctionType]:
    """What was registered: torch keeps it in closures of its own, which it marks when they run."""
    found: list[types.FunctionType] = []
    waiting = [(kernel, 0)]
    while waiting:
        function, depth = waiting.pop()
        if not isinstance(function, types.FunctionType) or depth > _DEEPEST:
            continue
        if str(function.__globals__.get("__name__")).partition(".")[0] != "torch":
            if function not in found:
                found.append(function)
            continue
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
        waiting += [(each, depth + 1) for each in held]
    return found


def is_definition(kind: type) -> bool:
    """Whether objects of this class are what ``torch.library.custom_op`` returns."""
    return kind.__name__ == "CustomOpDef" and kind.__module__ == "torch._library.custom_ops"


def way_of_operator(kind: type) -> Callable[[Walk, Any], None] | None:
    """How to look at values of exactly this type; None where it is none of these."""
    if kind is Operator:
        return look_at_operator
    if kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
        return look_at_overload
    return look_at_definition if is_definition(kind) else None
