# SPDX-License-Identifier: Apache-2.0
"""Under what conditions samples are looked up and made."""

from __future__ import annotations

import modcache
import torch
from torch.utils.data import Dataset


class Products(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        return torch.full((2, 2), 1 / 3) @ torch.full((2, 2), 1 / 3)


def test_autocast_around_a_pass_changes_no_sample() -> None:
    """A worker makes the same: it knows nothing of what the training thread entered."""
    products = Products()
    dataset = modcache.CachedDataset(products)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = dataset[0]
        assert torch.is_autocast_enabled("cpu")
        with modcache.mode("off"):
            off = dataset[0]
    after = dataset[0]
    dataset[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dataset[1]
    assert under.dtype == off.dtype == after.dtype == torch.float32
    assert torch.equal(under, after)
    assert products.asked == [0, 0, 1]
