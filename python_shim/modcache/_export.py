# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run while torch.export or torch.compile records it.

What is recorded is ``probe``, then ``torch.cond`` between ``fetch`` and ``put(module(input))``
(csrc/module/exported.h). Dynamo traces the functions of this file; what it is to execute as
ordinary Python while it does so is in ``_export_study``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from modcache._export_study import TENSOR, Plan, is_studying, study


def recorded(
    module: torch.nn.Module, input: Any, key: Any, scope: str, method: str, ragged: str
) -> Any:
    """The recorded call; a plain call of the module where it cannot be cached.

    torch.compile leaves texts as keys, which would be baked into the compiled code, to a call in
    eager mode.
    """
    if not torch.compiler.is_exporting() and _is_for_eager(module, key, ragged):
        return _in_eager_mode(module, input, key, scope, method, ragged)
    if is_studying():
        return _called(module, input, method)
    tensors: list[torch.Tensor] = []
    template = _template(input, tensors)
    ids = key if isinstance(key, torch.Tensor) else None
    text = None if isinstance(key, torch.Tensor) else key
    if torch.compiler.is_dynamo_compiling():
        from torch._dynamo.comptime import comptime

        comptime(_study_in_dynamo)
        plan = _planned(module)
    else:
        plan = study(module, template, tensors, ids, text, scope, method, ragged)
    if plan is None:
        return _called(module, input, method)
    site, dtypes, paths, places, spec = plan
    weights = [_tensor_at(module, path) for path in paths]
    sizes = [size if at < 0 else tensors[at].shape[size] for at, size in places]
    beside = tensors[0]
    ticket = torch.ops.cache._probe(ids, tensors, weights, sizes, site)

    def stored() -> Any:
        return tuple(torch.ops.cache._fetch(ticket, beside, sizes, dtypes))

    def run() -> Any:
        values = pytree.tree_leaves(_called(module, input, method))
        return tuple(torch.ops.cache._put(ticket, values))

    outputs = torch.cond(ticket >= 0, stored, run, ())
    return outputs[0] if spec is None else pytree.tree_unflatten(outputs, spec)


def _template(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The input with a mark in place of each tensor; these are added to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TENSOR
    if isinstance(value, tuple):
        return tuple([_template(part, tensors) for part in value])
    if isinstance(value, list):
        return [_template(part, tensors) for part in value]
    if isinstance(value, dict):
        return {name: _template(part, tensors) for name, part in value.items()}
    return value


def _called(module: torch.nn.Module, input: Any, method: str) -> Any:
    arguments = input if isinstance(input, tuple) else (input,)
    if method == "forward":
        return module(*arguments)
    return getattr(module, method)(*arguments)


def _tensor_at(module: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        module = getattr(module, name)
    return module


def _is_for_eager(module: torch.nn.Module, key: Any, ragged: str) -> bool:
    is_scripted = isinstance(module, torch.jit.ScriptModule)
    return is_scripted or not isinstance(key, torch.Tensor) or ragged != "error"


def _in_eager_mode(
    module: torch.nn.Module, input: Any, key: Any, scope: str, method: str, ragged: str
) -> Any:
    import modcache

    return modcache.lookup_or_run(module, input, key, scope=scope, method=method, ragged=ragged)


# As torch.compiler.disable does, the import of which takes seconds.
_in_eager_mode._torchdynamo_disable = True  # type: ignore[attr-defined]
_in_eager_mode._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "modcache.lookup_or_run under torch.compile(fullgraph=True) takes an eager module and ids, an "
    "int64 tensor [B]; keys that are text, a scripted module or ragged=... run in eager mode"
)

_plans: list[Plan | None] = []


def _study_in_dynamo(context: Any) -> None:
    """Runs in the midst of ``recorded``, when dynamo is there."""

    def local(name: str) -> Any:
        return context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker().realize()

    def fake_of(part: Any) -> torch.Tensor:
        fake: torch.Tensor = part.realize().proxy.node.meta["example_value"]
        return fake

    tensors = [fake_of(part) for part in local("tensors").items]
    ids = local("ids")
    names = ("template", "text", "scope", "method", "ragged")
    template, text, scope, method, ragged = (local(name).as_python_constant() for name in names)
    given = fake_of(ids) if ids.is_tensor() else None
    module = local("module").value
    _plans.append(study(module, template, tensors, given, text, scope, method, ragged))


def _planned(module: torch.nn.Module) -> Plan | None:
    """What the study found: constants to dynamo, for this very module."""
    return _plans.pop()


_planned._dynamo_marked_constant = True  # type: ignore[attr-defined]
