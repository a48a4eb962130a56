# SPDX-License-Identifier: Apache-2.0
"""Calls that torch.compile leaves to eager mode.

This module is imported at need, since importing torch's compiler takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modcache._call.arguments import Arguments

_REASON = (
    "modcache.lookup_or_run compiles for an eager module and ids, an int64 tensor [B]; with keys "
    "that are text, a scripted module or ragged=... it runs in eager mode"
)


@torch.compiler.disable(reason=_REASON)  # type: ignore[no-untyped-call, untyped-decorator]
def in_eager_mode(
    lookup_or_run: Callable[..., Any],
    module: torch.nn.Module,
    input: Any,
    names: tuple[str, ...],
    is_as_called: bool,
    key: Any,
    scope: str,
    method: str,
    ragged: str,
    mask: Any,
    lengths: Any,
    pad_value: float,
) -> Any:
    sample = Arguments.of(input, names, is_as_called) if names or is_as_called else input
    return lookup_or_run(
        module, sample, key, scope=scope, method=method, ragged=ragged, mask=mask,
        lengths=lengths, pad_value=pad_value,
    )  # fmt: skip
