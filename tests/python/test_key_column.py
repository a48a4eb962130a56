# SPDX-License-Identifier: Apache-2.0
"""The column of keys in a batch, and what is none."""

from __future__ import annotations

import modcache
import pytest
import torch
from modcache._call.key_column import column_of, is_column, texts_of
from torch.utils.data import TensorDataset

WHITE = torch.full((4, 64), 255)
BRIGHT = torch.full((4, 64), 200, dtype=torch.uint8)
BRIGHT[:, 0] = 255
EMPTY = torch.zeros(4, 64, dtype=torch.uint8)
EMPTY[:, 0] = 255
GAP = EMPTY.clone()
GAP[:, 1] = GAP[:, 3] = 65


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_keys_come_back(dtype: torch.dtype) -> None:
    keys = ["train/0", "\u00e9t\u00e9", "x" * 63]
    column = torch.stack([torch.from_numpy(column_of(key)) for key in keys]).to(dtype)
    assert is_column(column)
    assert texts_of(column) == keys


@pytest.mark.parametrize(
    "other",
    [WHITE, WHITE.to(torch.uint8), BRIGHT, EMPTY, GAP, WHITE + 1000, -WHITE],
    ids=["white", "white bytes", "bright", "no text", "zeros inside", "large", "negative"],
)
def test_images_of_64_places_are_no_keys(other: torch.Tensor) -> None:
    assert not is_column(other)


def test_an_index_may_be_a_tensor_or_negative() -> None:
    dataset = modcache.KeyedDataset(TensorDataset(torch.arange(3)), "train")
    *_, column = dataset.__getitems__([torch.tensor(1)])[0]  # type: ignore[list-item]
    assert texts_of(torch.from_numpy(column)[None]) == ["train/1"]
    assert dataset.key_of(-1) == "train/2"
