# SPDX-License-Identifier: Apache-2.0
"""The scope of an eager module: its fingerprint, where the caller gave none."""

from __future__ import annotations

import torch

from modcache._call.function import function_of
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.module_state import SeenState, state_of
from modcache._identity.scripted import fingerprint_of_method

CURE = "pass scope=... to name the module yourself"


def fingerprint(module: torch.nn.Module, method: str = "forward") -> str:
    """Returns 32 hexadecimal digits. Raises TypeError if the module cannot be hashed."""
    function_of(module, method)
    try:
        state = state_of(module)
        seen = state.recognize(module)
        return state.look(module).fingerprint if seen is None else state.fingerprint_of(seen)
    except UnidentifiedError as reason:
        raise unidentified(module, reason) from reason.__cause__


def unidentified(module: torch.nn.Module, reason: UnidentifiedError) -> TypeError:
    name = getattr(module, "original_name", type(module).__qualname__)
    return TypeError(f"{name} has no fingerprint: {reason}; {CURE}.")


def refresh_fingerprint(module: torch.nn.Module) -> str:
    """Returns the fingerprint after reading every byte of the module's tensors."""
    state_of(module).forget_weights()
    return fingerprint(module)


def address_of(module: torch.nn.Module, scope: str, method: str) -> tuple[str, SeenState | None]:
    """Returns the scope of a module, and the look that found it, where one was needed.

    Raises:
        UnidentifiedError: something in it cannot be hashed.
    """
    if scope:
        return scope, None
    if isinstance(module, torch.jit.ScriptModule):
        return fingerprint_of_method(module, method), None
    seen = state_of(module).look(module)
    return seen.fingerprint, seen
