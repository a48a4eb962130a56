# SPDX-License-Identifier: Apache-2.0
"""Finds out what a recorded call has to know about its module.

Nothing here leaves a trace in the program. A copy of the module runs once more on fake tensors, to
show what it returns and whether that may be cached.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from modcache._call.arguments import Arguments
from modcache._call.function import call_name_of
from modcache._call.inputs import shown
from modcache._call.rows import check_sizes
from modcache._call.tagged import tagged
from modcache._export.padded import (
    WHOLE_ROWS,
    Evidence,
    Marks,
    is_same_size,
    padding_fields,
    place_of,
    scopes_of,
)
from modcache._export.row_check import PROVEN, rows_field
from modcache._export.scope import Path, UncachedCallError, scope_of, with_real_tensors
from modcache._export.trial import called, filled, tried, without_wrapper
from modcache._identity.manifest import class_name
from modcache._identity.wrappers import identified_as
from modcache._library.text import checked_text

# The first field of a recorded call; of one with rows of their own length, the second. Saved
# programs have such texts, so another format needs another title.
RECORDED_CALL_TITLE = "modcache site 3"
_PADDED_CALL_TITLE = "modcache site 4"

# The text of the recorded call (module/exported/exported.h), the dtypes of the result's tensors,
# the paths of the weights, the result's sizes as (-1, size) or (input tensor, dimension), the place
# of the mask (padded.py), and the result with a number in place of each tensor.
Plan = tuple[str, str, tuple[Path, ...], tuple[tuple[int, int], ...], int, Any]


_studies = threading.local()


def is_studying() -> bool:
    """Whether this thread runs a module to study it. Cached calls inside it are plain ones."""
    return getattr(_studies, "depth", 0) > 0


class RecordedCall(NamedTuple):
    """A call as a recorder has it. ``by_dynamo``: the plan may hold only constants."""

    module: torch.nn.Module
    template: Any  # the input with TENSOR in place of each tensor
    names: tuple[str, ...]  # Arguments.names, if the input was such
    is_as_called: bool
    tensors: list[torch.Tensor]
    ids: torch.Tensor | None  # one per row; None where there is one key for the whole input
    key: Any
    scope: str
    method: str
    ragged: str
    by_dynamo: bool
    marks: Marks


def study(call: RecordedCall) -> Plan | None:
    """Makes the plan of a call. None: it cannot be cached, and the user was warned.

    Raises:
        TypeError, ValueError: the caller's mistakes, as in lookup_or_run.
        RuntimeError: with ``strict=true``, a call that cannot be cached.
    """
    _check_key(call.key, call.ids, call.ragged)
    call = call._replace(
        key=call.key or "",
        scope=checked_text(call.scope, "scope"),
        method=checked_text(call.method, "method"),
    )
    with _outside_of_modes():
        try:
            plain = [without_wrapper(tensor) for tensor in call.tensors]
            given = [without_wrapper(tensor) for tensor in call.marks.given]
            marks = call.marks._replace(given=given)
            *facts, picture = _studied(call._replace(tensors=plain, marks=marks))
            return (*facts, constant_picture(picture) if call.by_dynamo else picture)
        except UncachedCallError as why:
            who = call_name_of(call.module, call.method)
            message = f"modcache: {who} is recorded without the cache: {why}"
            if torch.ops.cache.settings()["strict"] == "true":
                raise RuntimeError(message) from None
            warnings.warn(message, stacklevel=2)
            return None


def _check_key(key: Any, ids: torch.Tensor | None, ragged: str) -> None:
    if ragged != "error":
        raise ValueError(
            f"ragged={ragged!r}: an exported program has rows of one shape; pad them to one length."
        )
    if ids is not None:
        return
    if not isinstance(key, str):
        raise TypeError(
            f"key is a {type(key).__name__}, but an exported program takes an int64 tensor of ids "
            "[B], one id per row, or a str, which is then part of the program. Ids are keys, too: "
            'id 7 is the key "7".'
        )
    if not checked_text(key, "key"):
        raise ValueError("modcache.lookup_or_run: key is an empty string")


@contextlib.contextmanager
def _outside_of_modes() -> Iterator[None]:
    """Has operators executed, not recorded."""
    from torch.utils._python_dispatch import _disable_current_modes

    _studies.depth = getattr(_studies, "depth", 0) + 1
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield
    finally:
        _studies.depth -= 1


def _studied(call: RecordedCall) -> Plan:
    tensors = call.tensors
    if not tensors:
        raise UncachedCallError("there is no tensor in its input")
    mark = place_of(call.marks, call.module, call.method, _input_of(call, tensors), tensors)
    if call.ids is not None:
        check_sizes(call.ids, [*tensors, *call.marks.given])
    elif mark != WHOLE_ROWS:
        raise ValueError(
            "lookup_or_run: mask and lengths are for rows, but there is one key for the whole "
            "input; pass one key per row."
        )
    leaves, spec = pytree.tree_flatten(
        tried(call.module, call.template, call.names, tensors, call.method)
    )
    dtypes, places = _described(leaves, tensors, has_rows=call.ids is not None)
    seen, refusal, *_ = shown(_input_of(call, _placeholders(len(tensors))))
    if refusal:
        raise UncachedCallError(f"its input holds {refusal}")
    signature, arguments, why, arithmetic = torch.classes.cache.Recording.form_of_input(seen)
    if why:
        raise UncachedCallError(f"its input holds {why}")
    kind, address, digest, paths = scope_of(call.module, call.scope, call.method)
    evidence = Evidence(
        call.module, kind, address, paths, call.method, arguments, arithmetic, leaves
    )
    padding = []
    if mark != WHOLE_ROWS:
        padding = padding_fields(call.marks, mark, tensors, evidence)
    rows = ""
    if call.ids is not None:
        rows = _rows_known(call, evidence, is_padded=bool(padding))
    recorder = "exported" if torch.compiler.is_exporting() else "compiled"
    title = _PADDED_CALL_TITLE if padding else RECORDED_CALL_TITLE
    fields = [
        title, kind, address, digest, call.method,
        class_name(identified_as(call.module)), call.key,
        signature, arguments, recorder, arithmetic, dtypes,
        _structure(spec, len(leaves)), rows, *padding,
    ]  # fmt: skip
    recorded_call = "".join(f"{len(field.encode())}:{field}" for field in fields)
    picture = pytree.tree_unflatten(range(len(leaves)), spec)
    return recorded_call, dtypes, paths, places, mark, picture


def _rows_known(call: RecordedCall, evidence: Evidence, *, is_padded: bool) -> str:
    """Returns what is known of the rows of a call's results (row_check.py)."""
    if is_padded:  # only eager calls make trials, and these have shown it
        return PROVEN

    def run(module: torch.nn.Module, tensors: list[torch.Tensor]) -> Any:
        return called(module, filled(call.template, iter(tensors)), call.names, call.method)

    return rows_field(
        scopes_of(evidence),
        call.method,
        evidence.arguments,
        evidence.arithmetic,
        call_name_of(call.module, call.method),
        lambda: with_real_tensors(call.module),
        run,
        call.tensors,
    )


def has_named_scope(recorded_call: str) -> bool:
    """Whether the caller named the scope of a recorded call."""
    titles = (RECORDED_CALL_TITLE, _PADDED_CALL_TITLE)
    return any(recorded_call.startswith(f"{len(title)}:{title}1:n") for title in titles)


def _input_of(call: RecordedCall, tensors: list[torch.Tensor]) -> Any:
    sample = filled(call.template, iter(tensors))
    is_named = call.names or call.is_as_called
    return Arguments.of(sample, call.names, call.is_as_called) if is_named else sample


def constant_picture(picture: Any) -> Any:
    """Makes a picture of tuples and plain values alone, which dynamo takes as constants."""
    if type(picture) is int:
        return picture
    if type(picture) not in (tuple, list, dict):
        raise UncachedCallError(
            f"its result holds a {type(picture).__name__}; valid where dynamo records "
            "(torch.compile and strict export) are a tensor, and tuples, lists and dicts of tensors"
        )
    names = tuple(picture) if isinstance(picture, dict) else ()
    parts = picture.values() if isinstance(picture, dict) else picture
    return type(picture).__name__, names, tuple(constant_picture(part) for part in parts)


def _placeholders(count: int) -> list[torch.Tensor]:
    return [torch.empty(0) for _ in range(count)]


def _structure(spec: pytree.TreeSpec, count: int) -> str:
    """Returns the tree of a result as text; "" for a lone tensor."""
    if spec.is_leaf():
        return ""
    structure, why = torch.classes.cache.Recording.structure(
        tagged(pytree.tree_unflatten(_placeholders(count), spec))
    )
    if why:
        raise UncachedCallError(f"its result is {why}")
    return str(structure)


def _described(
    leaves: list[Any], tensors: list[torch.Tensor], *, has_rows: bool
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Describes the dtypes and sizes of a result."""
    dtypes = ""
    places: list[tuple[int, int]] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise UncachedCallError(
                f"its result holds a {type(leaf).__name__}; valid are a tensor, and tuples, lists "
                "and dicts of tensors"
            )
        if leaf.requires_grad:
            raise UncachedCallError(
                "its result requires grad. If the module is frozen, say so: "
                "m.requires_grad_(False).eval(), or call it under torch.no_grad()"
            )
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.device != tensors[0].device:
            raise UncachedCallError(
                "a tensor of its result is not dense, or not on its input's device"
            )
        if has_rows and (leaf.dim() == 0 or not is_same_size(leaf.shape[0], tensors[0].shape[0])):
            raise UncachedCallError(
                f"a tensor of its result has the shape {list(leaf.shape)}; with one key per row "
                f"its first size must be that of the input, {tensors[0].shape[0]}. For one key for "
                "the whole input, pass the key as a str"
            )
        dtypes += f"{str(leaf.dtype).removeprefix('torch.')}:{leaf.dim()},"
        places += [_place(size, tensors) for size in leaf.shape]
    return dtypes, tuple(places)


def _place(size: int | torch.SymInt, tensors: list[torch.Tensor]) -> tuple[int, int]:
    """Says where a size of the result comes from: (-1, size), or (input tensor, dimension)."""
    if not isinstance(size, torch.SymInt):
        return -1, size
    for number, tensor in enumerate(tensors):
        for dimension, known in enumerate(tensor.shape):
            if isinstance(known, torch.SymInt) and known.node.expr == size.node.expr:
                return number, dimension
    raise UncachedCallError(
        f"a size of its result, {size}, is neither fixed nor a size of its input"
    )
