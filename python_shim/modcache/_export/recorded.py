# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run while torch.export or torch.compile records it.

The recorded program calls ``probe``, then ``torch.cond`` between ``fetch`` and
``put(module(input))`` (module/exported/exported.h). Dynamo traces the functions of this file. It
executes those of ``study.py`` as ordinary Python while it traces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import modcache._export.operators  # noqa: F401  (tells recorders the shapes of results)
from modcache._call.arguments import Arguments
from modcache._call.keys import ids_in_graph
from modcache._export.padded import BESIDE_INPUT, WHOLE_ROWS, Marks, kind_of
from modcache._export.scope import tensor_at
from modcache._export.study import Plan, RecordedCall, has_named_scope, is_studying, study
from modcache._export.trial import TENSOR, called


def recorded(
    lookup_or_run: Callable[..., Any],
    module: torch.nn.Module,
    input: Any,
    key: Any,
    scope: str,
    method: str,
    ragged: str,
    mask: Any = None,
    lengths: Any = None,
    pad_value: float = 0.0,
) -> Any:
    """Records the call; if it cannot be cached, a plain call of the module.

    Without fullgraph=True, torch.compile leaves the call to eager mode, since the branches of
    torch.cond take no module that breaks the graph. The same holds for a key that is text, which
    would become part of the compiled code. Eager mode then calls ``lookup_or_run``.
    """
    is_for_export = torch.compiler.is_exporting()
    key = ids_in_graph(key)
    names: tuple[str, ...] = ()
    is_as_called = False
    if isinstance(input, Arguments):
        names, is_as_called = input.names, input.is_as_called
        input = tuple(input)  # noqa: A001
    if not is_for_export and _is_for_eager(module, key, ragged):
        from modcache._export.eager_mode import in_eager_mode

        return in_eager_mode(
            lookup_or_run, module, input, names, is_as_called, key, scope, method, ragged,
            mask, lengths, pad_value,
        )  # fmt: skip
    if is_studying():
        return called(module, input, names, method)
    tensors: list[torch.Tensor] = []
    template = _template(input, tensors)
    ids = key if isinstance(key, torch.Tensor) else None
    text = None if isinstance(key, torch.Tensor) else key
    kind = kind_of(mask, lengths)
    which = lengths if mask is None else mask
    given: list[torch.Tensor] = []
    if isinstance(which, torch.Tensor):
        given.append(which)
        which = None
    if torch.compiler.is_dynamo_compiling():
        from torch._dynamo.comptime import comptime

        comptime(_study_in_dynamo)
        plan = _planned(module)
        if plan == _BREAK_GRAPH:
            from modcache._export.eager_mode import in_eager_mode

            return in_eager_mode(
                lookup_or_run, module, input, names, is_as_called, key, scope, method, ragged,
                mask, lengths, pad_value,
            )  # fmt: skip
    else:
        call = RecordedCall(
            module, template, names, is_as_called, tensors, ids, text, scope, method, ragged, False,
            Marks(kind, which, given, pad_value),
        )  # fmt: skip
        plan = study(call)
    if plan is None:
        return called(module, input, names, method)
    picture = plan[-1]
    if torch.compiler.is_dynamo_compiling():
        comptime(_specialize_floats)
    outputs = _branched(plan, tensors, given, ids, module, input, names, method)
    if torch.compiler.is_dynamo_compiling():
        comptime(_pin_what_is_read)
        return _rebuilt(picture, outputs)
    return pytree.tree_map(lambda number: outputs[number], picture)


def _branched(
    plan: Plan,
    tensors: list[torch.Tensor],
    given: list[torch.Tensor],
    ids: torch.Tensor | None,
    module: torch.nn.Module,
    input: Any,
    names: tuple[str, ...],
    method: str,
) -> Any:
    """Records both branches, which return the tensors of the result.

    ``given``: the mask or the lengths, where these are not among ``tensors``.
    """
    recorded_call, dtypes, paths, places, mark, _ = plan
    weights = [tensor_at(module, path) for path in paths]
    sizes = _sizes(tensors, places, dtypes)
    beside = tensors[0]
    marks: list[torch.Tensor] = []
    if mark != WHOLE_ROWS:
        marks = given if mark == BESIDE_INPUT else [tensors[mark]]
    handle = torch.ops.cache._probe.default(
        ids, [*tensors, *marks, *weights], len(tensors), sizes, recorded_call
    )
    device = beside.device.type
    has_autocast = torch.is_autocast_enabled(device)

    def stored() -> Any:
        # Read in the branch, since recorders treat sizes that come into it as other ones than those
        # of the tensors in it.
        sizes = _sizes(tensors, places, dtypes)
        return tuple(torch.ops.cache._fetch.default(handle, beside, sizes, dtypes))

    def run() -> Any:
        if has_autocast:  # strict export forgets it on the way into a branch
            with torch.autocast(device, dtype=torch.get_autocast_dtype(device)):
                values = pytree.tree_leaves(called(module, input, names, method))
        else:
            values = pytree.tree_leaves(called(module, input, names, method))
        return tuple(torch.ops.cache._put.default(handle, values))

    return torch.cond(handle >= 0, stored, run, ())


def _sizes(
    tensors: list[torch.Tensor], places: tuple[tuple[int, int], ...], dtypes: str
) -> list[Any]:
    """Returns the number of the result's tensors, and their sizes."""
    # Reads each size of the input once, since recorders treat two reads as two sizes.
    known = {place: tensors[place[0]].shape[place[1]] for place in places if place[0] >= 0}
    count = dtypes.count(",")
    return [count, *[known[place] if place[0] >= 0 else place[1] for place in places]]


def _template(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Puts a mark in place of each tensor of the input, and adds these to ``tensors``."""
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


def _rebuilt(picture: Any, outputs: tuple[torch.Tensor, ...]) -> Any:
    """Builds a result from its picture, which ``constant_picture`` made."""
    if isinstance(picture, int):
        return outputs[picture]
    kind, names, parts = picture
    rebuilt = [_rebuilt(part, outputs) for part in parts]
    if kind == "dict":
        return dict(zip(names, rebuilt, strict=True))
    return tuple(rebuilt) if kind == "tuple" else rebuilt


def _is_for_eager(module: torch.nn.Module, key: Any, ragged: str) -> bool:
    is_scripted = isinstance(module, torch.jit.ScriptModule)
    return is_scripted or not isinstance(key, torch.Tensor) or ragged != "error"


_BREAK_GRAPH = "break the graph"
_plans: list[Plan | str | None] = []
_float_patches: list[contextlib.ExitStack] = []


def _study_in_dynamo(context: Any) -> None:
    """Dynamo runs this when it comes to it in ``recorded``."""
    recorder = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    if not recorder.output.root_tx.one_graph:
        _plans.append(_BREAK_GRAPH)
        return

    def local(name: str) -> Any:
        return context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker().realize()

    def fake_of(part: Any) -> torch.Tensor:
        fake: torch.Tensor = part.realize().proxy.node.meta["example_value"]
        return fake

    ids = local("ids")
    constants = ("template", "names", "is_as_called", "scope", "method", "ragged")
    marks = Marks(
        given=[fake_of(part) for part in local("given").items],
        **{name: _constant_of(local(name)) for name in ("kind", "which", "pad_value")},
    )
    call = RecordedCall(
        module=local("module").value,
        tensors=[fake_of(part) for part in local("tensors").items],
        ids=fake_of(ids) if ids.is_tensor() else None,
        key=_constant_of(local("text")),
        by_dynamo=True,
        marks=marks,
        **{name: _constant_of(local(name)) for name in constants},
    )
    _plans.append(study(call))


def _specialize_floats(context: Any) -> None:
    """Makes floats that the module reads constants in the branches, before these are recorded.

    Dynamo passes a float that has changed once as an input, which torch.cond refuses from 2.14 on.
    A constant has a guard, so another value is recorded anew. ``_pin_what_is_read`` ends this. If
    recording fails before that, dynamo ends it, since it always calls its clean-up hooks.
    """
    output = context._i_will_not_complain_if_bc_breaks_InstructionTranslator().output
    patch = contextlib.ExitStack()
    patch.enter_context(torch._dynamo.config.patch(specialize_float=True))
    patch.callback(_float_patches.remove, patch)
    _float_patches.append(patch)
    output.add_cleanup_hook(patch.close)  # closing it once more does nothing


def _pin_what_is_read(context: Any) -> None:
    """Adds all else that the module reads to the recorded call, after the branches were recorded.

    Dynamo passes numbers that have changed once, and arrays of NumPy, to the compiled code as
    inputs without guards, while the plan has their present values. Here numbers get a guard, and
    the contents of tensors become part of the scope.
    """
    _float_patches[-1].close()  # the innermost one, since recorded calls may be nested
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import NumpyTensorSource, TensorPropertySource

    nodes = list(context.graph().nodes)
    branch = next(node for node in reversed(nodes) if node.target is torch.ops.higher_order.cond)
    operands = branch.args[3]
    probe = next(node for node in operands if node.target is torch.ops.cache._probe.default)
    ids, tensors, inputs, sizes, recorded_call = probe.args
    if has_named_scope(recorded_call):
        return
    unknown = [node for node in operands if node is not probe and node not in probe.all_input_nodes]
    for node in unknown:
        given = node.meta.get("grapharg")
        is_tensor = isinstance(node.meta["example_value"], torch.Tensor)
        if given is None and is_tensor:
            raise RuntimeError(
                f"modcache.lookup_or_run: the module reads {node.name}, which the recorded program "
                "computes; pass it as a part of the input"
            )
        if given is None:  # it is made of sizes
            continue
        is_array = isinstance(given.source, NumpyTensorSource)
        if is_tensor and (is_array or not given.pass_arg_as_tensor):
            tensors = [*tensors, node]
        elif not isinstance(given.source, TensorPropertySource):
            install_guard(given.source.make_guard(GuardBuilder.EQUALS_MATCH))
    probe.args = (ids, tensors, inputs, sizes, recorded_call)


def _constant_of(part: Any) -> Any:
    """Returns a value that dynamo treats as a constant, or makes it one."""
    part = part.realize()
    if hasattr(part, "evaluate_expr"):  # a number that dynamo treats as a variable
        return part.evaluate_expr()
    kind = part.python_type()
    if kind in (tuple, list):
        return kind(_constant_of(item) for item in part.items)
    if kind is dict:
        items = part.items.items()
        return {key.vt.as_python_constant(): _constant_of(value) for key, value in items}
    return part.as_python_constant()


def _planned(module: torch.nn.Module) -> Any:
    """Returns what the study found. Dynamo treats it as constants, for this very module."""
    return _plans.pop()


_planned._dynamo_marked_constant = True  # type: ignore[attr-defined]
