# SPDX-License-Identifier: Apache-2.0
"""What once went wrong in modcache.freeze."""

from __future__ import annotations

from typing import Any

import modcache
import torch
from lowered_models import scripted
from models import Encoder, Outer, reloaded

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_a_frozen_model_is_frozen_once_more(counted: Any) -> None:
    model = scripted(Outer(Encoder()))
    expected = model(X, "k")
    counted()
    again = modcache.freeze(reloaded(modcache.freeze(model)))
    assert torch.equal(again(X, "k"), expected)
    assert counted() == {"hits_memory": 1}
