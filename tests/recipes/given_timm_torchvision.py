# SPDX-License-Identifier: Apache-2.0
"""What the reader of docs/recipes/timm-torchvision.md has."""

from __future__ import annotations

import photos
import timm
import torch
import torchvision


def given(large: bool = False, library: str = "timm") -> dict[str, object]:
    """Returns a backbone with random weights, transforms, and two folders of photos in place."""
    size = 224 if large else 32
    photos.write("train", 24 if large else 9, size + size // 4)
    photos.write("val", 6, size + size // 4, seed=1)
    torch.manual_seed(0)
    if library == "torchvision":
        backbone = torchvision.models.resnet50() if large else torchvision.models.resnet18()
        width = backbone.fc.in_features
        backbone.fc = torch.nn.Identity()
    else:
        name = "vit_small_patch16_224" if large else "resnet10t"
        backbone = timm.create_model(name, pretrained=False, num_classes=0)
        width = backbone.num_features
    return {
        "backbone": backbone,
        "width": width,
        "augment": timm.data.create_transform(size, is_training=True, auto_augment=None),
        "prepare": timm.data.create_transform(size),
        "workers": 0,
        "epochs": 4,
    }
