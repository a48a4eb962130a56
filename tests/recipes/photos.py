# SPDX-License-Identifier: Apache-2.0
"""Photos for recipes: files in a folder for each class, which differ in colour and pattern."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
from PIL import Image

CLASSES = ("circles", "squares", "stripes")


def write(folder: str, count: int, size: int, seed: int = 0) -> Path:
    """Writes ``count`` photos of ``size`` x ``size`` pixels, unless the folder is there."""
    root = Path(folder)
    if root.exists():
        return root
    random = numpy.random.default_rng(seed)
    for number in range(count):
        label = number % len(CLASSES)
        path = root / CLASSES[label] / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 156, (size, size, 3), dtype=numpy.uint8)
        pixels[:, :, label] += 100
        Image.fromarray(pixels).save(path)
    return root


def edit(path: Path) -> None:
    """Changes one pixel of a photo, and its time, as what is written later has another."""
    image = Image.open(path).convert("RGB")
    red, *rest = image.getpixel((5, 7))  # type: ignore[misc]
    image.putpixel((5, 7), (red ^ 128, *rest))
    before = path.stat().st_mtime_ns
    image.save(path)
    os.utime(path, ns=(before + 1000, before + 1000))
