# SPDX-License-Identifier: Apache-2.0
"""The batches that Hugging Face's tokenizers make, with the real classes."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
KEYS = ["a", "b", "c"]


def test_a_tokenizers_batch_is_cached_row_by_row(counted: Any) -> None:
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).requires_grad_(False).eval()

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> Any:
            return self.model(**batch).last_hidden_state

    ids = torch.arange(12).reshape(3, 4)
    batch = transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    tower = Tower().eval()
    expected = tower(batch)
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(tower, batch, KEYS), expected)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def fast_tokenizer() -> Any:
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "cat": 3, "sat": 4, "dog": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
    )


def test_a_fast_tokenizers_batch(counted: Any) -> None:
    tokenizer = fast_tokenizer()

    class Counts(nn.Module):
        def forward(self, batch: Any) -> torch.Tensor:
            words = [len(set(batch.word_ids(row))) for row in range(len(batch["input_ids"]))]
            return batch["input_ids"].sum(1) + 100 * torch.tensor(words)

    module = Counts()
    texts = ["a cat sat", "a dog sat", "sat sat sat"]
    batch = tokenizer(texts, return_tensors="pt")
    expected = module(batch)
    few = tokenizer(texts[1:2], return_tensors="pt")
    assert torch.equal(modcache.lookup_or_run(module, few, KEYS[1:2], scope="s"), expected[1:2])
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, batch, KEYS, scope="s"), expected)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 4}

    class Tokenized:
        def __getitem__(self, index: int) -> Any:
            return tokenizer(texts[index], return_tensors="np")

    dataset: Any = modcache.CachedDataset(Tokenized(), scope="t")
    for _ in range(2):
        sample = dataset[2]
        assert type(sample) is type(batch)
        assert sample["input_ids"].tolist() == [[4, 4, 4]]
        assert sample.encodings is None
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
