# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes/diffusers-buckets.md takes from the reader."""

from __future__ import annotations

from typing import Any

import diffusion_models
import modcache
import torch
from diffusion_models import LARGE, SMALL, Size
from torch.nn import functional


class TrainStep:
    """The rest of the loop: one step of a U-Net on latents and the states of prompts."""

    def __init__(self, size: Size) -> None:
        self.load_text_encoder = diffusion_models.text_encoder(size)
        lazy = modcache.lazy(self.load_text_encoder, scope="text_encoder@1")
        self._encoder = modcache.cached(lazy, key="prompts", mask="attention_mask")
        self._tokenizer: Any = diffusion_models.tokenizer()
        self._unet: Any = diffusion_models.unet(size)
        self._scheduler: Any = diffusion_models.scheduler()
        self._optimizer = torch.optim.AdamW(self._unet.parameters(), lr=1e-3)
        self.losses: list[float] = []

    def __call__(self, latents: torch.Tensor, prompts: list[str]) -> None:
        tokens = self._tokenizer(prompts, padding=True, return_tensors="pt")
        with torch.no_grad():
            keys = [("prompt", prompt) for prompt in prompts]
            states = self._encoder(**tokens, prompts=keys).last_hidden_state
        noise = torch.randn_like(latents)
        steps = torch.randint(100, (len(latents),))
        noisy = self._scheduler.add_noise(latents, noise, steps)
        mask = tokens["attention_mask"]
        predicted = self._unet(noisy, steps, states, encoder_attention_mask=mask).sample
        loss = functional.mse_loss(predicted, noise)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.losses.append(loss.item())


def given(large: bool = False) -> dict[str, object]:
    """Images of three shapes, their captions, and the rest of the loop."""
    size = LARGE if large else SMALL
    side = size.image
    shapes = [(2 * side, 2 * side), (3 * side, 2 * side), (2 * side, 4 * side)]
    return {
        "images": diffusion_models.images([shapes[i % 3] for i in range(size.count)]),
        "captions": diffusion_models.captions(size.count),
        "buckets": [(side, side), (side * 3 // 2, side), (side // 2, side)],
        "load_vae": diffusion_models.vae(size),
        "train_step": TrainStep(size),
        "epochs": 2,
    }
