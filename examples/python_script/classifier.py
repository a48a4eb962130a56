# SPDX-License-Identifier: Apache-2.0
"""The model as one would write it anyway, with one line more: the encoder runs through the cache.

It is scripted, saved and loaded as it is, in Python and in C++; whether the cache is used is said
at run time (`modcache.set_mode("off")`, `MODCACHE_MODE=off`), not in the model.
"""

from __future__ import annotations

import modcache  # noqa: F401 - loads the operators of namespace `cache`
import torch
from torch import Tensor, nn

HIDDEN = 256


class TextClassifier(nn.Module):
    """A frozen encoder, run once per text, and a head that is trained.

    `ids` and `mask` are int64 [B, T], `keys` are the names of the B texts.
    """

    def __init__(self, encoder: torch.jit.ScriptModule, features: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(
            nn.Linear(features, HIDDEN),
            nn.GELU(),
            nn.Linear(HIDDEN, classes),
        )

    def forward(self, ids: Tensor, mask: Tensor, keys: list[str]) -> Tensor:
        return self.head(self.features(ids, mask, keys))

    @torch.jit.export
    def features(self, ids: Tensor, mask: Tensor, keys: list[str]) -> Tensor:
        # Each text by itself: a batch of another make-up would round differently, and cached and
        # uncached training could not end with the same bits.
        rows: list[Tensor] = []
        singly = zip(ids.split(1), mask.split(1), keys)  # noqa: B905 - TorchScript's has no strict
        for text_ids, text_mask, key in singly:
            rows.append(torch.ops.cache.lookup_or_run(self.encoder, (text_ids, text_mask), key))
        return torch.cat(rows)
