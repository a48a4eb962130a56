# SPDX-License-Identifier: Apache-2.0
"""What a training writes into the configuration of transformers, and arguments of its losses."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
Growth = Callable[[], dict[str, int]]
SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
IDS = torch.arange(6).reshape(2, 3)
ONES = torch.ones(2, 3, dtype=torch.int64)


@pytest.fixture
def classifier() -> Any:
    config = transformers.BertConfig(**SMALL, num_labels=3)
    return transformers.BertForSequenceClassification(config).eval().requires_grad_(False)


class Own(nn.Module):
    """The user's own code around the encoder."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: torch.Tensor) -> Any:
        found = self.bert(ids, attention_mask=torch.ones_like(ids)).pooler_output
        return found * 2 if self.bert.config.architectures else found


def test_a_checkpoint_is_no_change(classifier: Any, tmp_path: Any) -> None:
    before = modcache.fingerprint(classifier.bert)
    classifier.save_pretrained(tmp_path)
    assert classifier.config.architectures == ["BertForSequenceClassification"]
    assert modcache.fingerprint(classifier.bert) == before
    classifier.config.layer_norm_eps *= 2
    assert modcache.fingerprint(classifier.bert) != before


def test_a_first_loss_is_no_change_of_the_encoder_inside(classifier: Any) -> None:
    inside, around = modcache.fingerprint(classifier.bert), modcache.fingerprint(classifier)
    classifier(IDS, attention_mask=ONES, labels=torch.tensor([0, 1]))
    assert classifier.config.problem_type == "single_label_classification"
    assert modcache.fingerprint(classifier.bert) == inside
    assert modcache.fingerprint(classifier) != around  # its loss reads it


def test_other_models_of_the_process_do_not_count(classifier: Any) -> None:
    """Each model that is made is noted in a table, with what it can record."""
    before = modcache.fingerprint(classifier.bert)
    config = transformers.ViTConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    transformers.ViTModel(config)
    assert modcache.fingerprint(classifier.bert) == before


def test_the_names_of_the_labels_are_no_part_of_the_encoder_inside(classifier: Any) -> None:
    inside, around = modcache.fingerprint(classifier.bert), modcache.fingerprint(classifier)
    classifier.config.id2label = {0: "good", 1: "bad", 2: "neither"}
    assert modcache.fingerprint(classifier.bert) == inside
    assert modcache.fingerprint(classifier) != around


def test_what_the_user_s_own_code_reads_counts(classifier: Any, tmp_path: Any) -> None:
    own = Own(classifier.bert)
    before = modcache.fingerprint(own)
    classifier.save_pretrained(tmp_path)
    assert modcache.fingerprint(own) != before
    own.forward = types.MethodType(lambda self, x: x * self.bert.config.num_labels, own)
    before = modcache.fingerprint(own)
    classifier.config.id2label = {0: "good"}
    assert modcache.fingerprint(own) != before


@pytest.mark.parametrize("by", ["block", "argument"])
def test_the_number_of_labels_in_a_batch_does_not_count_for_rows(
    classifier: Any, by: str, counted: Growth
) -> None:
    """The Trainer passes it to the model, which hands it on to the encoder."""
    if by == "block":
        bert = modcache.cached(classifier.bert)
    else:
        bert = modcache.cached(classifier.bert, key="keys")
    for number in (torch.tensor(2.0), torch.tensor(1.0)):
        more: dict[str, Any] = {"attention_mask": ONES, "num_items_in_batch": number}
        if by == "block":
            with modcache.keys(["a", "b"]):
                bert(IDS, **more)
        else:
            bert(IDS, **more, keys=["a", "b"])
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


def test_the_number_of_labels_in_a_batch_counts_for_a_loss(
    classifier: Any, counted: Growth
) -> None:
    classifier.config.problem_type = "single_label_classification"
    cached = modcache.cached(classifier, key="key")
    labels = torch.tensor([0, 1])
    for number in (2, 1):
        cached(IDS, attention_mask=ONES, labels=labels, num_items_in_batch=number, key="a")
    assert counted() == {"misses": 2, "stored": 2}
