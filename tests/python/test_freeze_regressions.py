# SPDX-License-Identifier: Apache-2.0
"""What once went wrong in modcache.freeze."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import torch
from growth import bypassed
from lowered_models import scripted
from models import Encoder, Outer, reloaded
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_a_frozen_model_is_frozen_once_more(counted: Any) -> None:
    model = scripted(Outer(Encoder()))
    expected = model(X, "k")
    counted()
    again = modcache.freeze(reloaded(modcache.freeze(model)))
    assert torch.equal(again(X, "k"), expected)
    assert counted() == {"hits_memory": 1}


def test_weights_that_change_after_freezing_stay_out_of_the_frozen_model(counted: Any) -> None:
    """Else it would go on to store what the new ones give, under the scope of the old ones."""
    model = scripted(Outer(Encoder()))
    expected = model(X, "k")
    frozen = modcache.freeze(model)
    with torch.no_grad():
        model.encoder.linear.weight.add_(1)
        model.encoder.mean.add_(1)
    torch.testing.assert_close(frozen(X, "another"), expected)
    counted()
    assert torch.equal(frozen(X, "k"), expected)
    assert counted() == {"hits_memory": 1}


def test_what_torch_froze_is_stored_under_no_scope_but_its_own(counted: Any) -> None:
    """Constants of torch.jit.freeze are the model's own memory."""
    model = scripted(Outer(Encoder()))
    torch.ops.cache.lower(model)
    frozen = torch.jit.freeze(model)
    with modcache.mode("off"):
        expected = model(X, "k")
    counted()
    with torch.no_grad():
        model.encoder.linear.weight.add_(1)
        frozen(X, "k")
        assert bypassed(counted()) == {"bypassed_impure": 1}
        model.encoder.linear.weight.sub_(1)
    torch.testing.assert_close(model(X, "k"), expected)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512, 512))
        self.again = self.weight
        self.plain = {"gains": [torch.ones(4)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.sum() * self.again.sum() * self.plain["gains"][0]


def test_a_tensor_in_several_attributes_is_frozen_once(tmp_path: Path, counted: Any) -> None:
    model = scripted(Outer(Tied()))
    expected = model(X, "k")
    model.save(tmp_path / "scripted.pt")
    modcache.freeze(model).save(tmp_path / "frozen.pt")
    sizes = [(tmp_path / name).stat().st_size for name in ("scripted.pt", "frozen.pt")]
    assert sizes[1] < 1.5 * sizes[0]
    counted()
    assert torch.equal(reloaded(modcache.freeze(model))(X, "k"), expected)
    assert counted() == {"hits_memory": 1}
