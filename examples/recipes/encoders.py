# SPDX-License-Identifier: Apache-2.0
"""The frozen encoders of the recipes: one for pictures, one for text."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_script"))

from encoder import SentenceEncoder, load_encoder, tokenize


class GaborEncoder(nn.Module):
    """How much of each orientation and scale is where in a picture: the classical filter bank.

    The input is float32 [B, 1, S, S], the result [B, FEATURES].
    """

    ORIENTATIONS = 8
    WAVELENGTHS_PIXELS = (3.0, 5.0, 8.0)
    CELLS = 4  # the picture is summed up in CELLS x CELLS parts
    FEATURES = ORIENTATIONS * len(WAVELENGTHS_PIXELS) * CELLS * CELLS

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.stack([*self._filters()]).unsqueeze(1))

    def forward(self, pictures: Tensor) -> Tensor:
        even, odd = functional.conv2d(pictures, self.filters, padding="same").chunk(2, dim=1)
        energy = (even.square() + odd.square() + 1e-9).sqrt()
        cells = functional.adaptive_avg_pool2d(energy, self.CELLS)
        return functional.normalize(cells.flatten(1), dim=1)

    def _filters(self) -> list[Tensor]:
        """All even ones, then all odd ones, 15 x 15 pixels each."""
        return [
            _gabor(math.pi * turn / self.ORIENTATIONS, wavelength, phase)
            for phase in (0.0, math.pi / 2)
            for wavelength in self.WAVELENGTHS_PIXELS
            for turn in range(self.ORIENTATIONS)
        ]


def _gabor(angle: float, wavelength_pixels: float, phase: float) -> Tensor:
    offsets = torch.arange(-7.0, 8.0)
    y, x = torch.meshgrid(offsets, offsets, indexing="ij")
    along = x * math.cos(angle) + y * math.sin(angle)
    window = torch.exp(-(x.square() + y.square()) / (2 * (0.5 * wavelength_pixels) ** 2))
    wave = window * torch.cos(2 * math.pi * along / wavelength_pixels + phase)
    wave = wave - wave.mean()
    return wave / wave.norm()


def load_text_encoder() -> SentenceEncoder:
    """A pre-trained MiniLM, eager, frozen, in evaluation mode."""
    return load_encoder()[0]


def tokens_of(texts: Sequence[str], count: int = 16) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask of short texts, int64 [len(texts), count]."""
    ids, mask = tokenize(texts)
    return ids[:, :count], mask[:, :count]
