# SPDX-License-Identifier: Apache-2.0
"""Recipes: decode once, augment later. Each is a whole small training, cold and then warm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, default_collate

SIZE = 24
CLASSES = 3


class Decoded(Dataset[Any]):
    """Stands for reading and decoding image files: image [3, 12, 12] in 0..1, label."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 12, 12, generator=generator) + index % CLASSES
        return image / CLASSES, index % CLASSES


# --- Random crop and flip after the cache -----------------------------------------------


def crop_and_flip(image: torch.Tensor, size: int) -> torch.Tensor:
    """A random crop [3, size, size], mirrored half of the time."""
    top, left = torch.randint(0, image.shape[1] - size + 1, (2,)).tolist()
    image = image[:, top : top + size, left : left + size]
    return image.flip(2) if torch.rand(()) < 0.5 else image


class Augmented(Dataset[Any]):
    """What is random comes after the cache, so it differs in every epoch."""

    def __init__(self, decoded: Dataset[Any]) -> None:
        self.decoded = modcache.CachedDataset(decoded)

    def __len__(self) -> int:
        return len(self.decoded)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = self.decoded.__getitems__(indices)
        return [(crop_and_flip(image, size=8), label) for image, label in samples]


def train_on_crops(workers: int) -> list[float]:
    torch.manual_seed(1)
    loader = DataLoader(Augmented(Decoded()), batch_size=6, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.zeros(1, 3, 8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return losses


# --- Mixup and CutMix on cached features ------------------------------------------------


def mixup(features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blends each row with another: features [B, D], labels [B] become targets [B, classes]."""
    share = float(torch.distributions.Beta(0.4, 0.4).sample())
    other = torch.randperm(len(features))
    targets = functional.one_hot(labels, CLASSES).float()
    return features.lerp(features[other], share), targets.lerp(targets[other], share)


def cutmix(features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes a run of each row's features from another row."""
    start, end = sorted(torch.randint(0, features.shape[1] + 1, (2,)).tolist())
    other = torch.randperm(len(features))
    mixed = features.clone()
    mixed[:, start:end] = features[other, start:end]
    targets = functional.one_hot(labels, CLASSES).float()
    return mixed, targets.lerp(targets[other], (end - start) / features.shape[1])


def train_on_features(mix: Callable[..., Any]) -> list[float]:
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(432, 16), nn.Tanh())
    encoder.requires_grad_(False).eval()
    decoded = modcache.CachedDataset(Decoded())

    def with_ids(indices: list[int]) -> Any:
        return torch.tensor(indices), *default_collate(decoded.__getitems__(indices))

    # The loader gives indices: they are the keys of images and of features.
    loader = DataLoader(range(SIZE), batch_size=8, shuffle=True, collate_fn=with_ids)  # type: ignore[arg-type]
    head = nn.Linear(16, CLASSES)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for ids, images, labels in loader:
            features = modcache.lookup_or_run(encoder, images, ids)
            mixed, targets = mix(features, labels)
            loss = functional.cross_entropy(head(mixed), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return losses


# --- Augmentation on the accelerator ----------------------------------------------------


class AugmentOnDevice(nn.Module):
    """Random mirroring and brightness of a whole batch, where the model is."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        size = (len(images), 1, 1, 1)
        is_mirrored = torch.rand(size, device=images.device) < 0.5
        images = torch.where(is_mirrored, images.flip(3), images)
        return images * (0.8 + 0.4 * torch.rand(size, device=images.device))


def train_on_device(workers: int) -> list[float]:
    torch.manual_seed(1)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or torch.device("cpu")
    loader = DataLoader(
        modcache.CachedDataset(Decoded()),
        batch_size=6,
        num_workers=workers,
        pin_memory=device.type != "cpu",
    )
    augment = AugmentOnDevice().to(device)
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, CLASSES)).to(device)
    losses = []
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device)
        losses.append(functional.cross_entropy(model(augment(images)), labels).item())
    return losses


# --- Cold and warm, with the same seed: the same losses ----------------------------------


def cold_and_warm(train: Callable[[], list[float]]) -> None:
    with modcache.mode("off"):
        plain = train()
    cold = train()
    modcache.reset_stats()
    warm = train()
    assert modcache.stats()["misses"] == 0
    assert plain == cold == warm
    assert len(set(warm)) == len(warm)  # nothing froze: every batch is another


@pytest.mark.parametrize("workers", [0, 2])
def test_random_crop_and_flip_after_the_cache(workers: int) -> None:
    cold_and_warm(lambda: train_on_crops(workers))


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_mixing_cached_features(mix: Callable[..., Any]) -> None:
    cold_and_warm(lambda: train_on_features(mix))


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_on_the_accelerator(workers: int) -> None:
    cold_and_warm(lambda: train_on_device(workers))
