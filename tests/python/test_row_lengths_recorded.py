# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length inside TorchScript."""

from __future__ import annotations

import modcache
import pytest
import torch
from padded_rows import Model, States, padded_batch, sentences


def test_inside_torchscript_the_mask_is_a_tensor() -> None:
    eager = States().requires_grad_(False).eval()
    model = torch.jit.script(Model(eager))
    rows = sentences()
    ids = torch.arange(len(rows))
    for longest in (0, 11):
        tokens, mask = padded_batch(rows, longest)
        states = model(tokens, mask, ids)
        is_true = mask.bool()
        assert torch.allclose(states[is_true], eager(tokens, mask)[is_true], atol=1e-5)
        assert (states[~is_true] == 4.0).all()
    assert modcache.stats()["misses"] == len(rows)
    # An eager call under the same scope shares the entries.
    modcache.lookup_or_run(eager, padded_batch(rows), ids, mask="mask", scope="states")
    assert modcache.stats()["misses"] == len(rows)


def test_a_scripted_call_with_a_mask_is_not_lowered() -> None:
    model = torch.jit.script(Model(States().requires_grad_(False).eval())).eval()
    with pytest.raises(RuntimeError, match="rows have lengths of their own"):
        torch.ops.cache.lower(model._c)
