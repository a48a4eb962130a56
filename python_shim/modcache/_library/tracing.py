# SPDX-License-Identifier: Apache-2.0
"""torch.jit.trace: whether it is recording, and a way not to be recorded."""

from __future__ import annotations

import torch


def is_traced() -> bool:
    """Whether torch.jit.trace is recording."""
    return torch._C._get_tracing_state() is not None


class untraced:  # noqa: N801  (a context manager, called like a function)
    """Has operators run without being recorded."""

    def __enter__(self) -> None:
        self._state = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        torch._C._set_tracing_state(self._state)  # type: ignore[attr-defined]
