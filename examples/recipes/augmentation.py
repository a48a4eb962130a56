# SPDX-License-Identifier: Apache-2.0
"""Decode once, augment later: a cached dataset in front of random crops and flips.

What is slow and always the same (here drawing a letter, with photos decoding and resizing) comes
before the cache, what is random after it. ``CachedDataset`` keeps the samples with their labels, so
that from the second epoch on nothing is drawn, and leaves the random state alone, so that a warm
run augments, and learns, exactly as a cold one. ``variants=4`` is for augmentation that is slow
itself: four random versions of each sample are kept, and the epochs take turns with them.
"""

from __future__ import annotations

import modcache
import torch
from encoders import GaborEncoder
from glyphs import SCRIPTS, SIZE_PIXELS, Pictures
from options import folder_of
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

PADDING_PIXELS = 3


class Augmented(Dataset[tuple[Tensor, int]]):
    """Random crops and flips of (picture, label) samples."""

    def __init__(self, samples: Dataset[tuple[Tensor, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        samples = self.samples.__getitems__(indices)  # type: ignore[attr-defined]
        return [(_augmented(picture), label) for picture, label in samples]


def _augmented(picture: Tensor) -> Tensor:
    padded = functional.pad(picture, [PADDING_PIXELS] * 4)
    top, left = torch.randint(2 * PADDING_PIXELS + 1, (2,)).tolist()
    crop = padded[:, top : top + SIZE_PIXELS, left : left + SIZE_PIXELS]
    return crop.flip(2) if torch.rand(()) < 0.1 else crop


def train(samples: Dataset[tuple[Tensor, int]], epochs: int) -> list[float]:
    """The loss of each epoch."""
    torch.manual_seed(0)
    loader = DataLoader(Augmented(samples), batch_size=47, shuffle=True)
    encoder, head = GaborEncoder(), nn.Linear(GaborEncoder.FEATURES, len(SCRIPTS))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for pictures, labels in loader:
            loss = functional.cross_entropy(head(encoder(pictures)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def main() -> None:
    modcache.configure(dir=folder_of(__doc__))
    pictures = Subset(Pictures(), range(0, 940, 2))
    samples = modcache.CachedDataset(pictures)
    first = train(samples, epochs=3)
    modcache.reset_stats()
    warm = train(samples, epochs=3)
    counts = modcache.stats()
    print(f"loss by epoch: {', '.join(f'{loss:.4f}' for loss in first)}")
    print(f"once more:     {', '.join(f'{loss:.4f}' for loss in warm)}")
    print(f"the same: {first == warm}; drawn in the second training: {counts['misses']}")

    modcache.reset_stats()
    train(modcache.CachedDataset(pictures, variants=4), epochs=8)
    counts = modcache.stats()
    print(f"8 epochs of 4 variants: {counts['misses']} of {8 * len(pictures)} samples were drawn")


if __name__ == "__main__":
    main()
