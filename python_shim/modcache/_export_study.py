# SPDX-License-Identifier: Apache-2.0
"""What has to be known of a module when a call of it is recorded.

Nothing here leaves a trace in the program: the module is run once more, as a copy on fake tensors,
to learn what it returns and whether that may be cached.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from modcache._digest import difference, digest_of
from modcache._export_operators import check_ids
from modcache._inputs import shown
from modcache._kinds import UnidentifiedError
from modcache._walk import Records, Walk
from modcache._wrappers import identified_as

TENSOR = "modcache:tensor"

# The site, the dtypes of the result's tensors, the paths of the weights, the result's sizes as
# (-1, size) or (input tensor, dimension), and how the result is put together.
Plan = tuple[str, str, list[tuple[str, ...]], list[tuple[int, int]], Any]


class _PlainError(Exception):
    """Why the module is recorded without the cache."""


def study(module, template, tensors, ids, key, scope, method):
    with _outside_of_modes():
        try:
            return _studied(module, template, tensors, ids, key, scope, method)
        except _PlainError as why:
            warnings.warn(f"modcache: {type(module).__name__}.{method} is recorded without cache: {why}", stacklevel=2)
            return None


@contextlib.contextmanager
def _outside_of_modes():
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _studied(module, template, tensors, ids, key, scope, method):
    tensors = [inner(t) for t in tensors]
    if ids is not None:
        check_ids(ids, tensors)
    outcome = _tried(module, template, tensors, method)
    if not isinstance(outcome, torch.Tensor):
        raise _PlainError(f"it returns a {type(outcome).__name__}")
    places = [_place(size, tensors) for size in outcome.shape]
    dtypes = f"{str(outcome.dtype).removeprefix('torch.')}:{outcome.dim()},"
    signature, arguments, why = torch.ops.cache._form_of_input(shown(_filled(template, lambda: torch.empty(0)))[0])
    kind, scope, digest, paths = _scope(module, scope, method)
    fields = [kind, scope, digest, method, type(identified_as(module)).__name__, key, signature, arguments, torch.ops.cache._arithmetic_state(), dtypes, ""]
    site = "".join(f"{len(field.encode())}:{field}" for field in fields)
    return site, dtypes, paths, places, None


def inner(t):
    return torch._from_functional_tensor(t) if torch._is_functional_tensor(t) else t


def _filled(template, make):
    if template is TENSOR or (isinstance(template, str) and template == TENSOR):
        return make()
    if isinstance(template, (tuple, list)):
        return type(template)(_filled(p, make) for p in template)
    if isinstance(template, dict):
        return {k: _filled(p, make) for k, p in template.items()}
    return template


def _place(size, tensors):
    if isinstance(size, int):
        return (-1, size)
    for i, t in enumerate(tensors):
        for d, s in enumerate(t.shape):
            if isinstance(s, torch.SymInt) and s.node.expr == size.node.expr:
                return (i, d)
    raise _PlainError(f"size {size}")


def _held_tensors(module):
    found = {}
    for prefix, part in module.named_modules():
        names = {**part._parameters, **part._buffers, **vars(part)}
        for name, value in names.items():
            if isinstance(value, torch.Tensor):
                path = (*prefix.split("."), name) if prefix else (name,)
                found.setdefault(id(value), (path, value))
    return found


def _tried(module, template, tensors, method):
    fake_mode = detect_fake_mode(tensors)
    with fake_mode, fake_mode.shape_env.ignore_fresh_unbacked_symbols():
        memo = {}
        for number, (path, value) in _held_tensors(module).items():
            value_in = inner(value)
            fresh = torch.empty_strided(value_in.size(), value_in.stride(), dtype=value.dtype, device=value.device)
            if isinstance(value, torch.nn.Parameter):
                fresh = torch.nn.Parameter(fresh, requires_grad=value.requires_grad)
            memo[number] = fresh
    double = copy.deepcopy(module, memo)
    given = iter(tensors)
    with fake_mode, fake_mode.shape_env.ignore_fresh_unbacked_symbols():
        input = _filled(template, lambda: next(given).clone())
        arguments = input if isinstance(input, tuple) else (input,)
        return double(*arguments) if method == "forward" else getattr(double, method)(*arguments)


def _scope(module, scope, method):
    if scope:
        return "n", scope, "", []
    walk = Walk(module, Records())
    held = _held_tensors(module)
    return "e", digest_of(walk.leaves), "", [held[id(t)][0] for t in walk.tensors]
