# SPDX-License-Identifier: Apache-2.0
"""modcache.cached on functions: what messages call them, and what cannot be cached."""

from __future__ import annotations

import threading
from typing import Any

import modcache
import pytest
import torch

X = torch.arange(6.0).reshape(3, 2)


def scaled(x: torch.Tensor, k: float = 2) -> torch.Tensor:
    return x * k


def test_messages_call_a_function_by_its_name() -> None:
    @modcache.cached(key="ids")
    def ragged(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, int(x[0, 0]))

    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match=r"not caching \S*ragged"):
        ragged(torch.tensor([[1.0], [2.0]]), ids=[0, 1])


def test_a_function_that_cannot_be_identified_asks_for_a_scope() -> None:
    lock = threading.Lock()

    def locked(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x

    with pytest.raises(TypeError, match=r"lock.*scope="):
        modcache.cached(locked, key="k")(X, k="a")
    assert torch.equal(modcache.cached(locked, key="k", scope="locked@1")(X, k="a"), X)


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (coroutine, "coroutine"),
        (int, "the class int"),
        (len, "builtin_function_or_method"),
        (3, "int"),
    ],
)
def test_targets_that_cannot_be_cached(target: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        modcache.cached(target, key="k")


def test_freeze_is_for_modules() -> None:
    with pytest.raises(TypeError, match="freeze=True is for modules"):
        modcache.cached(scaled, key="k", freeze=True)
