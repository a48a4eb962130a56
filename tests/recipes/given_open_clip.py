# SPDX-License-Identifier: Apache-2.0
"""What the reader of docs/recipes/open-clip.md has."""

from __future__ import annotations

import open_clip
import photos
import torch


def given(large: bool = False) -> dict[str, object]:
    """Returns a CLIP with random weights, its transform and tokenizer; the photos are in place."""
    size = 224 if large else 32
    photos.write("photos", 48 if large else 9, size + size // 4)
    torch.manual_seed(0)
    if large:
        model = open_clip.create_model("ViT-B-32", load_weights=False)
    else:
        model = open_clip.CLIP(
            embed_dim=16,
            vision_cfg={"image_size": size, "patch_size": 8, "width": 64, "layers": 2},
            text_cfg={"context_length": 77, "vocab_size": 49408, "width": 64, "layers": 2},
        )
    return {
        "model": model,
        "preprocess": open_clip.image_transform(size, is_train=False),
        "tokenizer": open_clip.get_tokenizer("ViT-B-32"),
        "templates": ["a photo of {}", "a drawing of {}"],
        "workers": 0,
    }
