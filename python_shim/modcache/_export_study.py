# SPDX-License-Identifier: Apache-2.0
"""What has to be known of a module when a call of it is recorded.

Nothing here leaves a trace in the program. The module is run once more, as a copy on fake tensors,
to learn what it returns and whether that may be cached.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modcache._digest import difference
from modcache._eager import class_name_of
from modcache._export_operators import check_ids
from modcache._export_purity import Drawn
from modcache._export_scope import held_tensors, scope_of
from modcache._inputs import shown
from modcache._tagged import tagged
from modcache._text import checked_text
from modcache._walk import Records, Walk
from modcache._wrappers import identified_as

# Stands for a tensor in the template of an input.
TENSOR = "modcache:tensor"

# The site (csrc/module/exported.h), the dtypes of the result's tensors, where the module has its
# weights, the result's sizes as (-1, size) or (input tensor, dimension), and the result with the
# number of each tensor in its place.
Plan = tuple[str, str, tuple[tuple[str, ...], ...], tuple[tuple[int, int], ...], Any]


class PlainCallError(Exception):
    """Why a call is recorded as one of the module alone."""


_studies = threading.local()


def is_studying() -> bool:
    """Whether this thread runs a module to learn about it: calls inside it are plain ones."""
    return getattr(_studies, "depth", 0) > 0


def study(
    module: torch.nn.Module,
    template: Any,
    tensors: list[torch.Tensor],
    ids: torch.Tensor | None,
    key: Any,
    scope: str,
    method: str,
    ragged: str,
    *,
    by_dynamo: bool,
) -> Plan | None:
    """None: the module is to be called without the cache, of which the user was warned.

    Args:
        template: the input with TENSOR in place of each tensor.
        tensors: these, as the recorder has them.
        ids: one per row; None where there is one key for the whole input.

    Raises:
        TypeError, ValueError: the caller's mistakes, as lookup_or_run itself.
        RuntimeError: with ``strict=true``, in place of the warning.
    """
    _check_key(key, ids, ragged)
    scope = checked_text(scope, "scope", '"clip-vit-b32@3"')
    method = checked_text(method, "method", '"forward"')
    with _outside_of_modes():
        try:
            plain = [_without_wrapper(tensor) for tensor in tensors]
            *facts, picture = _studied(module, template, plain, ids, key or "", scope, method)
            return (*facts, constant_picture(picture) if by_dynamo else picture)
        except PlainCallError as why:
            who = f"{class_name_of(identified_as(module))}.{method}"
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
    if not checked_text(key, "key", '"image-000017"'):
        raise ValueError("modcache.lookup_or_run: key is an empty string")


@contextlib.contextmanager
def _outside_of_modes() -> Iterator[None]:
    """Within it operators are executed, and not recorded."""
    from torch.utils._python_dispatch import _disable_current_modes

    _studies.depth = getattr(_studies, "depth", 0) + 1
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield
    finally:
        _studies.depth -= 1


def _studied(
    module: torch.nn.Module,
    template: Any,
    tensors: list[torch.Tensor],
    ids: torch.Tensor | None,
    key: str,
    scope: str,
    method: str,
) -> Plan:
    if not tensors:
        raise PlainCallError("there is no tensor in its input")
    if ids is not None:
        check_ids(ids, tensors)
    outcome = _tried(module, template, tensors, method)
    leaves, spec = pytree.tree_flatten(outcome)
    dtypes, places = _described(leaves, tensors, ids)
    seen, refusal = shown(_filled(template, iter(_placeholders(len(tensors)))))
    signature, arguments, why = torch.ops.cache._form_of_input(seen) if not refusal else ("",) * 3
    if refusal or why:
        raise PlainCallError(f"its input holds {refusal or why}")
    kind, address, digest, paths = scope_of(module, scope, method)
    recorder = "exported" if torch.compiler.is_exporting() else "compiled"
    fields = [
        kind, address, digest, method, class_name_of(identified_as(module)), key, signature,
        arguments, recorder, str(torch.ops.cache._arithmetic_state()), dtypes,
        _structure(spec, len(leaves)),
    ]  # fmt: skip
    site = "".join(f"{len(field.encode())}:{field}" for field in fields)
    picture = pytree.tree_unflatten(range(len(leaves)), spec)
    return site, dtypes, paths, places, picture


def constant_picture(picture: Any) -> Any:
    """A picture of tuples and plain values alone, which dynamo takes as constants."""
    if type(picture) is int:
        return picture
    if type(picture) not in (tuple, list, dict):
        raise PlainCallError(
            f"its result holds a {type(picture).__name__}; valid where dynamo records (torch.compile "
            "and strict export) are a tensor, and tuples, lists and dicts of tensors"
        )
    names = tuple(picture) if isinstance(picture, dict) else ()
    parts = picture.values() if isinstance(picture, dict) else picture
    return type(picture).__name__, names, tuple(constant_picture(part) for part in parts)


def _placeholders(count: int) -> list[torch.Tensor]:
    return [torch.empty(0) for _ in range(count)]


def _structure(spec: pytree.TreeSpec, count: int) -> str:
    """The tree of a result as text; empty for a lone tensor."""
    if spec.is_leaf():
        return ""
    structure, why = torch.ops.cache._structure(
        tagged(pytree.tree_unflatten(_placeholders(count), spec))
    )
    if why:
        raise PlainCallError(f"its result is {why}")
    return str(structure)


def _described(
    leaves: list[Any], tensors: list[torch.Tensor], ids: torch.Tensor | None
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Dtypes and sizes of a result."""
    dtypes = ""
    places: list[tuple[int, int]] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise PlainCallError(
                f"its result holds a {type(leaf).__name__}; valid are a tensor, and tuples, lists "
                "and dicts of tensors"
            )
        if leaf.requires_grad:
            raise PlainCallError(
                "its result requires grad. If the module is frozen, say so: "
                "m.requires_grad_(False).eval(), or call it under torch.no_grad()"
            )
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.device != tensors[0].device:
            raise PlainCallError(
                "a tensor of its result is not dense, or not on its input's device"
            )
        if ids is not None and (leaf.dim() == 0 or leaf.shape[0] != tensors[0].shape[0]):
            raise RuntimeError(
                f"modcache.lookup_or_run: a tensor of the result has the shape {list(leaf.shape)}; "
                f"with one key per row its first size must be that of the input, "
                f"{tensors[0].shape[0]}. For one key for the whole input, pass the key as a str"
            )
        dtypes += f"{str(leaf.dtype).removeprefix('torch.')}:{leaf.dim()},"
        places += [_place(size, tensors) for size in leaf.shape]
    return dtypes, tuple(places)


def _place(size: int | torch.SymInt, tensors: list[torch.Tensor]) -> tuple[int, int]:
    """Where a size of the result comes from."""
    if not isinstance(size, torch.SymInt):
        return -1, size
    for number, tensor in enumerate(tensors):
        for dimension, known in enumerate(tensor.shape):
            if isinstance(known, torch.SymInt) and known.node.expr == size.node.expr:
                return number, dimension
    raise PlainCallError(f"a size of its result, {size}, is neither fixed nor a size of its input")


def _without_wrapper(tensor: torch.Tensor) -> torch.Tensor:
    if torch._is_functional_tensor(tensor):
        return torch._from_functional_tensor(tensor)
    return getattr(tensor, "elem", tensor) if _is_functional(tensor) else tensor


def _is_functional(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FunctionalTensor"


def _filled(template: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(template, str) and template == TENSOR:
        return next(tensors)
    if isinstance(template, (tuple, list)):
        return type(template)(_filled(part, tensors) for part in template)
    if isinstance(template, dict):
        return {name: _filled(part, tensors) for name, part in template.items()}
    return template


def _tried(module: torch.nn.Module, template: Any, tensors: list[torch.Tensor], method: str) -> Any:
    """What the module returns, of fake tensors. The module itself is left alone."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(tensors)
    if mode is None:
        raise PlainCallError("the recorder uses no fake tensors")
    symbols = mode.shape_env.ignore_fresh_unbacked_symbols if mode.shape_env is not None else None
    with mode, symbols() if symbols is not None else contextlib.nullcontext():
        stand_ins = {number: _stand_in(held) for number, (_, held) in held_tensors(module).items()}
        given = [tensor.clone() for tensor in tensors]
    try:
        double = copy.deepcopy(module, dict(stand_ins))
    except Exception as error:
        raise PlainCallError(f"it cannot be copied to be tried ({error})") from None
    before = Walk(double, Records(), is_tolerant=True)
    watched = [*stand_ins.values(), *given]
    versions = [tensor._version for tensor in watched]
    drawn = Drawn()
    with mode, symbols() if symbols is not None else contextlib.nullcontext(), drawn:
        input = _filled(template, iter(given))
        arguments = input if isinstance(input, tuple) else (input,)
        run = double if method == "forward" else getattr(double, method)
        outcome = run(*arguments)
    if drawn.by:
        raise PlainCallError(f"random numbers were drawn by {drawn.by}")
    if versions != [tensor._version for tensor in watched]:
        raise PlainCallError("a run changes its tensors or its input in place")
    changed = difference(before, Walk(double, before._records, is_tolerant=True))
    if changed:
        raise PlainCallError(f"a run changes it: {changed}")
    return outcome


def _stand_in(held: torch.Tensor) -> torch.Tensor:
    held = _without_wrapper(held)
    made = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device=held.device)
    if isinstance(held, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=held.requires_grad)
    return made.requires_grad_(held.requires_grad)
