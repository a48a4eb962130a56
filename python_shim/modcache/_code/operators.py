# SPDX-License-Identifier: Apache-2.0
"""Operators of ``torch.ops`` that were written in Python.

An operator of C++ is identified by its name. An operator that ``torch.library.custom_op`` made is
identified by its functions. An operator with a kernel from ``torch.library.Library.impl`` cannot be
identified, since torch keeps no function of such a kernel that could be found.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from modcache._code.objects import is_a

# Attributes of a custom_op's definition besides its kernels; the attribute with its kernels.
PARTS = ("_init_fn", "_disabled_kernel", "_autocast_dtype")
KERNELS = "_backend_fns"
_EMPTY = types.CellType()
_DEEPEST = 6  # nested closures
# Namespaces whose kernels in Python belong to torch, and are identified by their names. Those of
# "aten" are fakes.
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
    """An operator that code calls, as a value. ``name`` is "namespace::name"."""

    def __init__(self, name: str) -> None:
        self.name = name


def operator_called(value: object, attributes: list[str]) -> Operator | str | None:
    """Finds the operator that ``value`` with these attributes is.

    Text says why an operator is unknown. None: it is nothing of ``torch.ops``.
    """
    namespace: Any = value
    path = list(attributes)
    while is_a(namespace, types.ModuleType) and namespace is not torch.ops and path:
        if is_a(namespace, torch._ops._OpNamespace):
            break
        namespace = vars(namespace).get(path.pop(0))
    if is_a(namespace, torch._ops._OpNamespace):
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
    """Finds what ``torch.library.custom_op`` made under this name; None for other operators."""
    return definitions().get(name)


def definitions() -> Any:
    """Returns what ``torch.library.custom_op`` made, by name; torch holds it weakly."""
    return torch._library.custom_ops.OPDEFS


def definitions_behind(module: types.ModuleType, chain: tuple[str, ...]) -> Iterator[object]:
    """Finds the definition of the operator that attributes of ``module`` name."""
    path = chain if module is torch else ("ops", *chain) if module is torch.ops else ()
    if len(path) < 3 or path[0] != "ops":
        return
    definition = definition_of(f"{path[1]}::{path[2]}")
    if definition is not None:
        yield definition


def parts_of(value: Any) -> tuple[str, list[object]] | None:
    """Returns the name of a definition and its functions; None for any other value."""
    if type(value) is not CustomOpDef:
        return None
    return str(value._qualname), [value._init_fn, *getattr(value, KERNELS, {}).values()]


def unseen_kernel_of(name: str) -> str:
    """Says why an operator is not identified; "" if its functions or its name do that."""
    is_told = name.partition("::")[0] in _OF_TORCH or definition_of(name) is not None
    if is_told or name not in _with_kernels_in_python():
        return ""
    return f"the operator {name} has a kernel in Python that torch does not show"


def _with_kernels_in_python() -> frozenset[str]:
    """Names the operators that have kernels in Python, other than those for shapes."""
    global _kernels
    known: Any = getattr(torch.library, "_impls", ())
    if _kernels[0] != known:
        # One step copies it, since other threads and the garbage collector remove entries.
        entries = frozenset(known)
        split = [entry.split("/") for entry in entries if not entry.endswith("/Meta")]
        names = (f"{parts[0]}::{parts[1].partition('.')[0]}" for parts in split)
        _kernels = (entries, frozenset(names))
    return _kernels[1]


# The entries that torch listed at the last look, and the operators that they name.
_kernels: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


def functions_inside(kernel: object) -> list[types.FunctionType]:
    """Finds the registered functions, which torch keeps in closures of its own."""
    found: list[types.FunctionType] = []
    waiting = [(kernel, 0)]
    while waiting:
        function, depth = waiting.pop()
        if not is_a(function, types.FunctionType) or depth > _DEEPEST:
            continue
        if str(function.__globals__.get("__name__")).partition(".")[0] != "torch":
            if function not in found:
                found.append(function)
            continue
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
        waiting += [(each, depth + 1) for each in held]
    return found
