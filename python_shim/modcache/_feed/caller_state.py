# SPDX-License-Identifier: Apache-2.0
"""Carries what torch and modcache keep for each thread from one thread to another."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any

import torch

from modcache._library.mode import mode_of_context


class CallerState:
    """The calling thread's grad mode, inference mode, autocast, cache mode and context variables.

    Args:
        device_types: devices whose autocast state is carried, such as ``("cpu", "cuda")``.
    """

    def __init__(self, device_types: tuple[str, ...]) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in device_types
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        ]
        self._keeps_casts = torch.is_autocast_cache_enabled()
        self._mode = _thread_mode()
        self._context = contextvars.copy_context()

    def run(self, function: Callable[[], None]) -> None:
        """Calls ``function`` in this thread with the other one's state. It may be called once."""
        self._context.run(self._run, function)

    def _run(self, function: Callable[[], None]) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, dtype in self._autocast:
                autocast: Any = torch.autocast(kind, dtype=dtype, cache_enabled=self._keeps_casts)
                stack.enter_context(autocast)
            torch.ops.cache._leave_mode(self._mode)
            function()


def _thread_mode() -> int:
    """Returns the number of the calling thread's own mode, without that of the process."""
    before = int(torch.ops.cache._enter_mode(mode_of_context()))
    mode = int(torch.ops.cache._enter_mode("on"))
    torch.ops.cache._leave_mode(before)
    return mode
