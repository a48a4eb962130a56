# SPDX-License-Identifier: Apache-2.0
"""Sentences of several lengths in padded batches, and modules that heed their mask."""

from __future__ import annotations

from typing import Any

import modcache
import torch
from torch import nn

WIDTH = 8
LENGTHS = [3, 7, 1, 5, 7, 2]
IDS = torch.arange(len(LENGTHS))


class Tower(nn.Module):
    """Tokens that attend to each other, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.layer(self.embed(tokens), src_key_padding_mask=mask == 0)
        weights = mask.to(states.dtype).unsqueeze(-1)
        return states, (states * weights).sum(1) / weights.sum(1)


def sentences() -> list[torch.Tensor]:
    return [torch.randint(1, 50, (length,)) for length in LENGTHS]


def padded_batch(rows: list[torch.Tensor], longest: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(longest, *map(len, rows))
    tokens, mask = (
        torch.zeros(len(rows), longest, dtype=torch.int64),
        torch.zeros(len(rows), longest),
    )
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return tokens, mask


def assert_padded(
    found: torch.Tensor, states: torch.Tensor, mask: torch.Tensor, pad_value: float
) -> None:
    """Each row has its true part as in ``states``, and ``pad_value`` beside it."""
    is_true = mask.bool()
    assert found.shape == states.shape
    assert torch.allclose(found[is_true], states[is_true], atol=1e-5)
    assert (found[~is_true] == pad_value).all()


class States(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.tower(tokens, mask)[0]


class Model(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(
            self.encoder, (tokens, mask), ids, mask=mask, pad_value=4.0, scope="states"
        )


class Program(nn.Module):
    """``marks``: mask= or lengths= by name; None: the tensor itself is given as mask=."""

    def __init__(
        self, encoder: nn.Module, scope: str = "", marks: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.scope = scope
        self.marks = marks

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> Any:
        marks = {"mask": mask} if self.marks is None else self.marks
        return modcache.lookup_or_run(
            self.encoder, (tokens, mask), ids, scope=self.scope, pad_value=4.0, **marks
        )


def seen(
    encoder: nn.Module, batch: tuple[Any, ...], batches: int = 8, scope: str = "", **marks: Any
) -> None:
    """Has eager calls see how the rows are padded. The first batch has the keys ``IDS``."""
    for number in range(batches):
        ids = IDS + number * len(IDS)
        modcache.lookup_or_run(encoder, batch, ids, scope=scope, **(marks or {"mask": 1}))


def exported(model: nn.Module, batch: tuple[Any, ...], **options: Any) -> Any:
    rows = torch.export.Dim("rows", min=1)
    longest = torch.export.Dim("longest", min=2)
    shapes = ({0: rows, 1: longest}, {0: rows, 1: longest}, {0: rows})
    return torch.export.export(model, (*batch, IDS), dynamic_shapes=shapes, **options)


def padded(lengths: list[int], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).float()
    return torch.randn(len(lengths), longest, 5) * mask[..., None], mask
