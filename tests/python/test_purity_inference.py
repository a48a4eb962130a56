# SPDX-License-Identifier: Apache-2.0
"""Tensors made under inference mode count no versions; what a run does to them is seen."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from modcache._identity import contents
from torch import nn

X = torch.linspace(-1, 1, 8)


class CountsInference(nn.Module):
    """Counts its calls in a buffer, among many weights."""

    def __init__(self, shape: tuple[int, ...] = (8,)) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])
        self.register_buffer("calls", torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        self.calls.add_(1)
        return x + self.calls.reshape(-1)[0]


@pytest.mark.parametrize("scope", ["", "named"])
def test_a_counter_is_never_cached(scope: str, counted: Any, capfd: Any) -> None:
    with torch.inference_mode():
        module = CountsInference()
        for _ in range(12):
            modcache.lookup_or_run(module, X, "k", scope=scope)
        assert module.calls[0] == 12
    assert bypassed(counted()) == {"bypassed_impure": 12}
    if not scope:
        assert "buffer 'calls' of CountsInference changed" in capfd.readouterr().err


@pytest.mark.parametrize("shape", [(8,), (3, 70), ()])
def test_a_counter_too_large_to_be_read_in_full(
    shape: tuple[int, ...], counted: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(contents, "_MOST_BYTES", 0)
    with torch.inference_mode():
        module = CountsInference(shape)
        for _ in range(3):
            modcache.lookup_or_run(module, X, "k")
    assert bypassed(counted()) == {"bypassed_impure": 3}


def test_a_module_that_changes_nothing_is_cached(counted: Any) -> None:
    with torch.inference_mode():
        module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).eval()
        for _ in range(3):
            modcache.lookup_or_run(module, X, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}


def test_tensors_without_contents_are_left_out() -> None:
    with torch.inference_mode():
        tensors = [torch.eye(2).to_sparse(), torch.ones(2), torch.ones(2, device="meta")]
    assert list(contents.contents_without_versions([*tensors, torch.ones(2)])) == [1]
