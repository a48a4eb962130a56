# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run while torch.export or torch.compile records it.

What is recorded is ``probe``, then ``torch.cond`` between ``fetch`` and ``put(module(input))``
(csrc/module/exported.h). Dynamo traces the functions of this file, and executes those of
``_export_study`` as ordinary Python.
"""

from __future__ import annotations

from typing import Any

import torch

from modcache._export_study import TENSOR, Plan, study


def recorded(module: torch.nn.Module, input: Any, key: Any, scope: str, method: str) -> Any:
    """The recorded call; a plain call of the module where it cannot be cached."""
    tensors: list[torch.Tensor] = []
    template = _template(input, tensors)
    ids = key if isinstance(key, torch.Tensor) else None
    text = "" if isinstance(key, torch.Tensor) else key
    if torch.compiler.is_dynamo_compiling():
        from torch._dynamo.comptime import comptime

        comptime(_study_in_dynamo)
        plan = _planned(module)
    else:
        plan = study(module, template, tensors, ids, text, scope, method)
    if plan is None:
        return _called(module, input, method)
    site, dtypes, paths, places, unflatten = plan
    weights = [_tensor_at(module, path) for path in paths]
    sizes = [size if at < 0 else tensors[at].shape[size] for at, size in places]
    beside = tensors[0]
    ticket = torch.ops.cache._probe(ids, tensors, weights, sizes, site)

    def stored() -> Any:
        return tuple(torch.ops.cache._fetch(ticket, beside, sizes, dtypes))

    def run() -> Any:
        result = _called(module, input, method)
        return tuple(torch.ops.cache._put(ticket, [result]))

    outputs = torch.cond(ticket >= 0, stored, run, ())
    return outputs[0]


def _template(value: Any, tensors: list[torch.Tensor]) -> Any:
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


_plans: list[Plan | None] = []


def _study_in_dynamo(context: Any) -> None:
    """Runs while dynamo traces ``recorded``."""

    def local(name: str) -> Any:
        return context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker()

    tensors = [part.proxy.node.meta["example_value"] for part in local("tensors").items]
    ids = local("ids")
    given = None if not ids.is_tensor() else ids.proxy.node.meta["example_value"]
    module = local("module").value
    template = local("template").as_python_constant()
    text, scope, method = (local(name).as_python_constant() for name in ("text", "scope", "method"))
    _plans.append(study(module, template, tensors, given, text, scope, method))


@torch._dynamo.assume_constant_result
def _planned(module: torch.nn.Module) -> Plan | None:
    return _plans.pop()
