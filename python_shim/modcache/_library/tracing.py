# SPDX-License-Identifier: Apache-2.0
"""torch.jit.trace: whether it is recording, and a way not to be recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def is_traced() -> bool:
    """Whether torch.jit.trace is recording."""
    return torch._C._get_tracing_state() is not None


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Has operators run without being recorded."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
