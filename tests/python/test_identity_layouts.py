# SPDX-License-Identifier: Apache-2.0
"""Scripted modules that hold tensors which are not plain memory run, and never raise."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from models import frozen
from torch import nn

X = torch.linspace(-1, 1, 4)


def looked_up(module: Any, scope: str = "") -> torch.Tensor:
    result: torch.Tensor = modcache.lookup_or_run(module, X, "k", scope=scope)
    return result


class Holds(nn.Module):
    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.held.to_dense().sum()


class Replaces(nn.Module):
    """Writes a tensor that it does not read."""

    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held = x.to_sparse()
        return x * 2


HELD = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.eye(3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", HELD)
def test_a_tensor_that_cannot_be_hashed_needs_a_scope(layout: str, counted: Any) -> None:
    module = torch.jit.script(Holds(HELD[layout]()))
    for _ in range(2):
        assert torch.equal(looked_up(module), module(X))
    assert bypassed(counted()) == {"bypassed_identity": 2}
    for _ in range(2):
        assert torch.equal(looked_up(module, scope="mine@1"), module(X))
    assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}


class HoldsNested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.held.numel()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_nested_tensor_needs_a_scope(counted: Any) -> None:
    module = torch.jit.script(HoldsNested())
    assert torch.equal(looked_up(module), X + 5)
    assert bypassed(counted()) == {"bypassed_identity": 1}
    for _ in range(2):
        assert torch.equal(looked_up(module, scope="mine@1"), X + 5)
    assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}


@pytest.mark.parametrize("scope", ["", "mine@1"])
def test_a_run_that_replaces_such_a_tensor_is_not_kept(scope: str, counted: Any) -> None:
    module = torch.jit.script(Replaces(torch.eye(3).to_sparse()))
    for _ in range(2):
        assert torch.equal(looked_up(module, scope=scope), X * 2)
    assert bypassed(counted()) == {"bypassed_impure": 2}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", HELD)
def test_such_a_tensor_beside_weights_that_require_grad(layout: str) -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(4, 4), Holds(HELD[layout]())))
    for scope in ("", "mine@1"):
        assert looked_up(module, scope=scope).requires_grad


# --- Messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["no module", "no method"])
def test_messages_name_the_operator_that_was_called(what: str) -> None:
    module = torch.jit.script(frozen(nn.Linear(4, 4)))
    given, method = (3, "forward") if what == "no module" else (module, "other")
    with pytest.raises(RuntimeError, match=r"^cache::fingerprint: "):
        torch.ops.cache.fingerprint(given, method=method)
    with pytest.raises(RuntimeError, match=r"^cache::lookup_or_run: "):
        torch.ops.cache.lookup_or_run(given, X, "k", method=method)
