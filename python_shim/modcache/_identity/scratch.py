# SPDX-License-Identifier: Apache-2.0
"""Attributes that every run writes before it reads them: they are no part of an identity."""

from __future__ import annotations

# accelerate's hook notes the device of a call's input, and moves the output there.
_SCRATCH = {("accelerate.hooks", "AlignDevicesHook"): frozenset({"input_device"})}
_NOTHING: frozenset[str] = frozenset()


def scratch_of(kind: type) -> frozenset[str]:
    """Returns the names of such attributes of objects of exactly this class."""
    return _SCRATCH.get((kind.__module__, kind.__qualname__), _NOTHING)
