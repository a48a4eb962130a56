# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length whose keys come from a DataLoader, in padded batches."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from keyed_modules import Growth
from padded_rows import States
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

SIZE = 12


class Sentences(Dataset[Any]):
    """Each sample is as long as its sentence."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(1, 2 + index * 5 % 7) + index
        return {"tokens": tokens, "mask": torch.ones(len(tokens))}


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [torch.as_tensor(sample[name]) for sample in samples] for name in samples[0]}
    return {
        name: pad_sequence(values, batch_first=True) if name in ("tokens", "mask")
        else torch.stack(values)
        for name, values in columns.items()
    }  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_epoch_of_shuffled_padded_batches_runs_nothing(
    counted: Growth, workers: int
) -> None:
    encoder = States().requires_grad_(False).eval()
    cached = modcache.cached(encoder, mask="mask")
    loader = DataLoader(
        modcache.KeyedDataset(Sentences(), "train"),
        4,
        shuffle=True,
        num_workers=workers,
        collate_fn=padded,
    )
    for expected in ("misses", "hits_memory"):
        for batch in loader:
            with modcache.keys(batch["modcache_keys"]):
                found = cached(batch["tokens"], batch["mask"])
            is_true = batch["mask"].bool()
            wanted = encoder(batch["tokens"], batch["mask"])
            assert torch.allclose(found[is_true], wanted[is_true], atol=1e-5)
            assert not found[~is_true].any()
        assert counted()[expected] == SIZE


def test_content_keys_of_padded_rows_are_refused() -> None:
    encoder = States().requires_grad_(False).eval()
    wanted = "mask and lengths are for keys of rows; with key="
    for key in ("content", modcache.content_keys):
        with pytest.raises(ValueError, match=f"cached: {wanted}"):
            modcache.cached(encoder, key=key, mask="mask")
        with pytest.raises(ValueError, match=f"fill: {wanted}"):
            modcache.fill(encoder, [(torch.ones(2, 3, dtype=torch.int64),)], key=key, mask=1)
