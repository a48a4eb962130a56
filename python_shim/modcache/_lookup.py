# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run and fingerprints: one face for scripted and eager modules."""

from __future__ import annotations

from typing import Any

import torch

from modcache import _eager
from modcache._bypass import is_traced, transform_in_force
from modcache._inputs import is_taken_as_it_is
from modcache._text import checked_text
from modcache._wrappers import identified_as


def lookup_or_run(
    module: torch.nn.Module, input: Any, key: str, *, scope: str = "", method: str = "forward"
) -> torch.Tensor:
    """The module's output for this sample: from the cache, or by running the module once.

    Args:
        module: an eager ``torch.nn.Module``, or a ScriptModule (scripted, traced or loaded).
        input: what the module is run on: a Tensor of any shape, or a tuple, whose items become
            the arguments of the method. A list or dict is one argument. Values besides tensors
            (numbers, text, dtypes, enums, ...) are part of the address; an input with a value
            that cannot be told from others by its text passes through uncached.
        key: names the sample: non-empty text of any length. The same key with the same module
            means the same output.
        scope: a name for the module that the caller answers for, for instance
            ``"clip-vit-b32@3"``; it replaces the fingerprint and its check. The default is the
            module's fingerprint, which changes with its code, attributes and weights.
        method: the method to run.

    Returns:
        The output: values, dtype and shape as the module returned them. What comes from the
        cache never requires grad. Writing into it changes no later result.

    Raises:
        TypeError: an argument of a wrong type, or a module that returns no Tensor.
        ValueError: an empty key, or text with lone surrogates.
        AttributeError, or RuntimeError for a scripted module: it has no such method.
        Whatever the module raises, unchanged; nothing is stored then.

    Inside ``torch.jit.script`` a call of this function compiles into the operator
    ``cache::lookup_or_run``.
    """
    _check_module(module, "lookup_or_run")
    key = checked_text(key, "key", '"image-000017"')
    scope = checked_text(scope, "scope", '"clip-vit-b32@3"')
    method = checked_text(method, "method", '"forward"')
    why = transform_in_force(input)
    is_operators = isinstance(module, torch.jit.ScriptModule) and is_taken_as_it_is(input)
    if not why and is_traced() and not is_operators:
        why = "under torch.jit.trace"
    if why:
        return _eager.run_uncached(module, input, key, method, why)
    if is_operators:
        output = torch.ops.cache.lookup_or_run(module, input, key, scope=scope, method=method)
        return output  # type: ignore[no-any-return]
    return _eager.lookup_or_run(module, input, key, scope, method)


def fingerprint(module: torch.nn.Module, *, method: str = "forward") -> str:
    """What identifies the module: 32 hexadecimal digits, the default ``scope`` of its entries.

    Args:
        module: eager or scripted. One wrapped by DDP or torch.compile counts as itself.
        method: the method that is to be run.

    Raises:
        TypeError: no module, or an eager one with an attribute that cannot be hashed.
        AttributeError: an eager module without such a method.
        RuntimeError: either of these for a scripted one.
    """
    _check_module(module, "fingerprint")
    method = checked_text(method, "method", '"forward"')
    inner = identified_as(module)
    if isinstance(inner, torch.jit.ScriptModule):
        return str(torch.ops.cache.fingerprint(inner, method=method))
    return _eager.fingerprint(inner, method)


def refresh_fingerprint(module: torch.nn.Module) -> str:
    """Reads every weight anew, and returns the fingerprint.

    For changes that no check can see: single elements written through a NumPy view or a raw
    pointer, or in place under inference mode on an accelerator.

    Raises: as ``fingerprint``.
    """
    _check_module(module, "refresh_fingerprint")
    inner = identified_as(module)
    if isinstance(inner, torch.jit.ScriptModule):
        torch.ops.cache.refresh_fingerprint(inner)
        return fingerprint(inner)
    return _eager.refresh_fingerprint(inner)


def _check_module(module: object, function: str) -> None:
    if isinstance(module, torch.nn.Module):
        return
    if isinstance(module, torch.jit.ScriptFunction):
        cure = "Put it into a module: a scripted function has no attributes to identify it by."
    elif isinstance(module, type) and issubclass(module, torch.nn.Module):
        cure = f"Pass an instance: {module.__name__}(...)."
    else:
        cure = "Pass an eager torch.nn.Module or a scripted, traced or loaded one."
    given = module.__name__ if isinstance(module, type) else type(module).__name__
    raise TypeError(f"{function}: module must be a torch.nn.Module, but got {given}. {cure}")
