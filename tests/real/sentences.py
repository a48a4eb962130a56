# SPDX-License-Identifier: Apache-2.0
"""The sentence encoder of examples/ in a model that caches it, and sentences for it."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

import functools
from typing import Any, Tuple  # noqa: UP035  (TorchScript reads these)

import encoder as example_encoder
import modcache
import texts
import torch
from torch import Tensor, nn

COUNT = 4


class Sentences(nn.Module):
    """One feature vector per sentence, from the cache. `scope` "" is the encoder's fingerprint."""

    def __init__(self, encoder: Any, scope: str = "") -> None:
        super().__init__()
        self.encoder = encoder
        self.scope = scope

    def forward(self, tokens: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        return modcache.lookup_or_run(self.encoder, (tokens, mask), ids, scope=self.scope)


@functools.cache
def encoders() -> Tuple[nn.Module, Any]:  # noqa: UP006
    """Eager and traced."""
    return example_encoder.load_encoder()


@functools.cache
def sentences() -> Tuple[Tensor, Tensor, Tensor]:  # noqa: UP006
    """Tokens, mask and ids."""
    chosen = texts.load_texts(texts.TEST_EVERY * len(texts.PACKAGES))[:COUNT]
    tokens, mask = example_encoder.tokenize([text.text for text in chosen])
    return tokens, mask, torch.arange(COUNT)


@functools.cache
def features() -> Tensor:
    """What the encoder says about them, without the cache."""
    tokens, mask, _ = sentences()
    with torch.no_grad():
        result: Tensor = encoders()[0](tokens, mask)
    return result
