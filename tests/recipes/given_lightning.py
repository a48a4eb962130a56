# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes/lightning.md takes from the reader."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import timm
import torch
from torch.utils.data import TensorDataset

TRAIN, VAL, CLASSES = 32, 16, 3
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def given(
    large: bool = False, epochs: int = 3, checkpoint: str | None = None, **options: Any
) -> dict[str, object]:
    """Returns a backbone with random weights, images and labels, and options of the trainer."""
    torch.manual_seed(0)
    name, size = ("vit_small_patch16_224", 224) if large else ("resnet10t", 32)
    backbone = timm.create_model(name, pretrained=False, num_classes=0)
    return {
        "backbone": backbone,
        "width": backbone.num_features,
        "classes": CLASSES,
        "train": images(TRAIN, size, 1),
        "val": images(VAL, size, 2),
        "checkpoint": checkpoint,
        "options": {
            "accelerator": "cpu",
            "max_epochs": epochs,
            "logger": False,
            "log_every_n_steps": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            **options,
        },
    }


def images(count: int, size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    pixels = torch.randn(count, 3, size, size, generator=generator)
    return TensorDataset(pixels + labels[:, None, None, None], labels)
