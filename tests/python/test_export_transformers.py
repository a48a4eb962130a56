# SPDX-License-Identifier: Apache-2.0
"""A model that others wrote, recorded: BERT of Hugging Face."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from models import frozen
from recorded_models import exported
from torch import nn
from transformers import BertConfig, BertModel

WORDS = torch.randint(0, 100, (4, 12), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(12)[None, :] < torch.tensor([12, 5, 12, 3])[:, None]).long()
IDS = torch.arange(4)


def bert() -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 16}
    config = BertConfig(num_hidden_layers=2, num_attention_heads=4, vocab_size=100, **sizes)
    return frozen(BertModel(config))


class Pooled(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=words, attention_mask=mask).last_hidden_state[:, 0]


class Cached(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, words: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> Any:
        return modcache.lookup_or_run(self.encoder, (words, mask), ids)


@pytest.mark.parametrize("recorder", ["nonstrict", "strict", "compile"])
def test_an_encoder(recorder: str, counted: Any) -> None:
    model = Cached(Pooled(bert()))
    if recorder == "compile":
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
    else:
        run = exported(model, WORDS, MASK, IDS, strict=recorder == "strict").module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        assert torch.allclose(run(WORDS, MASK, IDS), model.encoder(WORDS, MASK), atol=1e-4)
        assert counted() == growth
    model(WORDS, MASK, IDS)
    assert counted() == {"hits_memory": 4}, "TorchScript does not take it: shared with eager calls"


def test_a_model_output(counted: Any) -> None:
    model = Cached(bert())
    run = exported(model, WORDS, MASK, IDS).module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        found = run(WORDS, MASK, IDS).last_hidden_state
        want = model.encoder(WORDS, MASK).last_hidden_state
        assert torch.allclose(found, want, atol=1e-4)
        assert counted() == growth
