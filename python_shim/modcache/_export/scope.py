# SPDX-License-Identifier: Apache-2.0
"""The scope that a recorded call carries.

A program of torch.export has the fingerprint of the module's scripted form, if there is one, so
that it shares entries with scripted, frozen and C++ models. Otherwise, and under torch.compile, it
has the structure that the fingerprint of the eager module is made of. The weights are parameters of
the recorded call, so either scope stands for the weights that the program has when it runs.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import torch

from modcache._code.wrapped import WRAPPED_FORWARD, unwrapped_method
from modcache._identity.digest import digest_of
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.records import Records
from modcache._identity.scripted import native
from modcache._identity.walk import Walk
from modcache._identity.wrappers import identified_as

# Names of attributes, and keys of lists and dicts; each key is in a tuple of its own.
Path = tuple[Any, ...]
# Kind (module/exported/exported.h), scope, digest of the weights, and paths of these.
Scope = tuple[str, str, str, tuple[Path, ...]]
_CURE = "pass scope=... to name the module yourself"


class UncachedCallError(Exception):
    """The reason why a call is recorded as one of the module alone."""


def scope_of(module: torch.nn.Module, scope: str, method: str) -> Scope:
    """Finds the scope of ``module``; ``scope`` itself, if the caller gave one.

    Raises:
        UncachedCallError: the module cannot be identified.
    """
    if scope:
        return "n", scope, "", ()
    real = with_real_tensors(module)
    target = identified_as(real)
    try:
        walk = Walk(target, Records())
        if walk.scripted:
            raise UnidentifiedError("it holds a scripted module")
    except UnidentifiedError as reason:
        raise UncachedCallError(f"it has no fingerprint, since {reason}; {_CURE}") from None
    places = {number: path for number, (path, _) in held_tensors(real).items()}
    if any(id(tensor) not in places for tensor in walk.tensors):
        raise UncachedCallError(f"it reads a tensor that is in no attribute of a module; {_CURE}")
    paths = tuple(places[id(tensor)] for tensor in walk.tensors)
    scripted = _fingerprint_of_scripted(target, method) if torch.compiler.is_exporting() else ""
    if scripted:
        return "b", scripted, str(torch.classes.cache.Recording.weights_digest(walk.tensors)), paths
    return "e", digest_of(walk.leaves), "", paths


def held_tensors(module: torch.nn.Module) -> dict[int, tuple[Path, torch.Tensor]]:
    """Finds the tensors in attributes of modules, by id, with the path to each."""
    found: dict[int, tuple[Path, torch.Tensor]] = {}
    for prefix, part in module.named_modules():
        path = tuple(prefix.split(".")) if prefix else ()
        for name, value in {**part._parameters, **part._buffers, **vars(part)}.items():
            if name not in _CONTAINERS_OF_MODULES:
                _add_tensors(value, (*path, name), found)
    return found


_CONTAINERS_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})
_DEEPEST = 8


def _add_tensors(
    value: Any, path: Path, found: dict[int, tuple[Path, torch.Tensor]], depth: int = 0
) -> None:
    if isinstance(value, torch.Tensor):
        found.setdefault(id(value), (path, value))
    elif type(value) in (list, tuple, dict) and depth < _DEEPEST:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            _add_tensors(part, (*path, (key,)), found, depth + 1)


def tensor_at(module: Any, path: Path) -> Any:
    """Returns the tensor at a path that ``held_tensors`` found."""
    for step in path:
        module = getattr(module, step) if isinstance(step, str) else module[step[0]]
    return module


def _fingerprint_of_scripted(module: torch.nn.Module, method: str) -> str:
    """Returns the fingerprint; "" if TorchScript refuses the module, or may differ from Python."""
    for part in module.modules():
        has_hooks = part._forward_hooks or part._forward_pre_hooks
        if has_hooks or method in vars(part):
            return ""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch.jit.script leaves an attribute on what it is given.
        double = copy.deepcopy(module, {k: held for k, (_, held) in held_tensors(module).items()})
        is_cached = method == "forward" and unwrapped_method(double, method)
        compiled = WRAPPED_FORWARD if is_cached else method
        return str(torch.ops.cache.fingerprint(native(torch.jit.script(double)), method=compiled))
    return ""


def with_real_tensors(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module; a copy with its real weights if a recorder replaced them by fake ones.

    Raises:
        UncachedCallError: the weights were not found.
    """
    memo: dict[int, Any] = {key: tensor for key, (_, tensor) in held_tensors(module).items()}
    fakes = {key: held for key, held in memo.items() if type(held).__name__ == "FakeTensor"}
    if not fakes:
        return module
    for key, fake in fakes.items():
        memo[key] = _real_of(fake)
        if memo[key] is None:
            raise UncachedCallError(f"the recorder hides its weights; {_CURE}")
    return copy.deepcopy(module, memo)


def _real_of(fake: Any) -> torch.Tensor | None:
    """Finds the tensor for which this fake one was made."""
    try:
        converter = fake.fake_mode.fake_tensor_converter.meta_converter
        for reference, number in converter.describer.lookup_tensor.data.items():
            if converter.tensor_memo.get(number) is fake:
                real: torch.Tensor | None = reference()
                return real
    except AttributeError:  # another torch has other attributes
        pass
    return None
