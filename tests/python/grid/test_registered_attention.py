# SPDX-License-Identifier: Apache-2.0
"""A user's own attention function, registered with transformers: never an old output."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner


def registered(factor: float) -> Any:
    from transformers import AttentionInterface, BertConfig, BertModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    names: dict[str, Any] = {"sdpa": sdpa_attention_forward, "FACTOR": factor}
    text = "def attention(*a, **k):\n    o, w = sdpa(*a, **k)\n    return o * FACTOR, w\n"
    exec(compile(text, "/srv/attention.py", "exec"), names)
    AttentionInterface.register("users_own", names["attention"])
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    model = BertModel(config).eval().requires_grad_(False)
    model.set_attn_implementation("users_own")
    return model


def outputs(factor: float, again: float) -> list[bool]:
    """Whether each look-up gave what the model gives: as registered, and registered anew."""
    ids = torch.arange(8)[None]
    model = registered(factor)
    found = [modcache.lookup_or_run(model, ids, "k")[0] for _ in range(6)]
    right = [torch.equal(each, model(ids)[0]) for each in found]
    registered(again)
    right.append(torch.equal(modcache.lookup_or_run(model, ids, "k")[0], model(ids)[0]))
    modcache.flush()
    return right


@pytest.mark.parametrize("again", [2.0, 5.0])
def test_registered_edited_and_registered_anew(processes: ProcessRunner, again: float) -> None:
    assert all(processes.run(outputs, 1.0, again).value)
    assert all(processes.run(outputs, 3.0, again).value)
