# SPDX-License-Identifier: Apache-2.0
"""Calls that are plain hits, and the Python functions that run in a call."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modcache
import torch
from torch import nn

X = torch.ones(1, 4)
PACKAGE = Path(modcache.__file__).parent


def frozen(module: Any) -> Any:
    return module.requires_grad_(False).eval()


def scripted(module: nn.Module) -> Any:
    return torch.jit.script(frozen(module))


def blocks(count: int) -> nn.Module:
    return frozen(nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(count)]))


@contextlib.contextmanager
def profiled(note: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Tells ``note`` of every call meanwhile.

    Garbage is not collected meanwhile, since before Python 3.11.3 that reads freed memory where it
    meets a generator which runs under a profiler (python/cpython#101975).
    """
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


def functions_called(call: Callable[[], Any]) -> list[str]:
    """The Python functions of the package that ran."""
    found: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and PACKAGE in Path(frame.f_code.co_filename).parents:
            found.append(frame.f_code.co_name)

    with profiled(note):
        call()
    return found


def hit(module: Any, **options: Any) -> Callable[[], Any]:
    """A call that has been made often enough to be a hit on the fast path."""

    def call() -> Any:
        return modcache.lookup_or_run(module, X, "k", **options)

    for _ in range(6):
        call()
    return call


FAST = ["lookup_or_run"]
