# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes/diffusers.md takes from the reader."""

from __future__ import annotations

from pathlib import Path

import diffusion_models
import numpy as np
import torch
from diffusion_models import LARGE, SMALL
from PIL import Image
from torch.utils.data import Dataset


class Captioned(Dataset[tuple[torch.Tensor, str]]):
    """Images in files, and their captions."""

    def __init__(self, paths: list[Path], captions: list[str]) -> None:
        self.paths = paths
        self.captions = captions

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        pixels = torch.from_numpy(np.array(Image.open(self.paths[index]).convert("RGB")))
        return pixels.permute(2, 0, 1) / 127.5 - 1, self.captions[index]


def given(large: bool = False) -> dict[str, object]:
    """A latent diffusion model and a data set of captioned images."""
    size = LARGE if large else SMALL
    unet = diffusion_models.unet(size)
    paths = diffusion_models.images([(size.image, size.image)] * size.count)
    return {
        "dataset": Captioned(paths, diffusion_models.captions(size.count)),
        "load_vae": diffusion_models.vae(size),
        "load_text_encoder": diffusion_models.text_encoder(size),
        "tokenizer": diffusion_models.tokenizer(),
        "unet": unet,
        "scheduler": diffusion_models.scheduler(),
        "optimizer": torch.optim.AdamW(unet.parameters(), lr=1e-3),
        "scaling_factor": 0.18215,
        "epochs": 2,
    }
