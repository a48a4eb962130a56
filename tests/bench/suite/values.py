# SPDX-License-Identifier: Apache-2.0
"""What is cached: values of four sizes, which show at once when they are another key's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """One size of values, float32; how many of them a directory holds, and a batch has."""

    name: str
    shape: tuple[int, ...]
    count: int
    batches: int = 0  # how many batches of BATCH rows a directory of rows holds

    @property
    def bytes(self) -> int:
        return 4 * math.prod(self.shape)


BATCH = 256
SIZES = {
    size.name: size
    for size in (
        Size("2 KiB", (512,), 4096, 64),
        Size("151 KB", (197, 192), 1024, 8),
        Size("3 MB", (3, 512, 512), 64),
        Size("12.6 MB", (3, 1024, 1024), 24),
    )
}


class Noise(nn.Module):
    """[B, 1] numbers -> [B, *shape]: the same noise for each, with the number in front."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.base: Tensor
        self.register_buffer("base", torch.randn((1, *shape), generator=generator))
        self.places = [1] * len(shape)

    def forward(self, numbers: Tensor) -> Tensor:
        # TorchScript knows no star in a list.
        rows = self.base.repeat([numbers.size(0)] + self.places)  # noqa: RUF005
        rows.flatten(1)[:, 0] = numbers[:, 0]
        return rows


def noise(size: Size) -> nn.Module:
    return Noise(size.shape).requires_grad_(False).eval()


def key_of(number: int) -> str:
    return f"sample-{number:06d}"


def keys_of(count: int) -> list[str]:
    return [key_of(number) for number in range(count)]


def inputs_of(count: int) -> list[Tensor]:
    return [torch.full((1, 1), float(number)) for number in range(count)]


class Block(nn.Module):
    """Six parameters, as a block of a transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.n(x + self.b(torch.relu(self.a(x))))
        return out


BLOCKS = 50
PARAMETERS = 6 * BLOCKS


def deep() -> nn.Module:
    """A frozen eager module of 300 parameters."""
    torch.manual_seed(7)
    return nn.Sequential(*[Block() for _ in range(BLOCKS)]).requires_grad_(False).eval()
