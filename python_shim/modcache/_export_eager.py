# SPDX-License-Identifier: Apache-2.0
"""Calls that torch.compile leaves to eager mode. Imported when it is there: that takes seconds."""

from __future__ import annotations

from typing import Any

import torch

from modcache._arguments import Arguments

_REASON = (
    "modcache.lookup_or_run compiles for an eager module and ids, an int64 tensor [B]; with keys "
    "that are text, a scripted module or ragged=... it runs in eager mode"
)


def _in_eager_mode(
    module: torch.nn.Module,
    input: Any,
    names: tuple[str, ...],
    is_as_called: bool,
    key: Any,
    scope: str,
    method: str,
    ragged: str,
) -> Any:
    import modcache

    sample = Arguments.of(input, names, is_as_called) if names or is_as_called else input
    return modcache.lookup_or_run(module, sample, key, scope=scope, method=method, ragged=ragged)


in_eager_mode = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _in_eager_mode, reason=_REASON
)
