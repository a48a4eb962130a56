# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length whose keys come from a DataLoader, in padded batches."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from keyed_modules import Growth
from padded_rows import States, assert_padded, padded_batch, sentences
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


@pytest.mark.parametrize(("where", "lazy"), [({"mask": "mask"}, False), ({"mask": 1}, True)])
def test_content_keys_find_a_sentence_whatever_its_batch_was_padded_to(
    counted: Growth, where: dict[str, Any], lazy: bool
) -> None:
    encoder = States().requires_grad_(False).eval()
    target = modcache.lazy(lambda: encoder, scope="states@1") if lazy else encoder
    cached = modcache.cached(target, key=modcache.content_keys, **where)
    rows = sentences()
    for order, longest, expected in (([0, 1, 2], 0, "misses"), ([2, 0], 9, "hits_memory")):
        tokens, mask = padded_batch([rows[i] for i in order], longest)
        tokens[mask == 0] = 49  # what stands in the padding does not count
        found = cached(tokens, mask)
        assert_padded(found, encoder(tokens, mask), mask, 0.0)
        assert counted()[expected] == len(order)


def test_content_keys_of_lengths_and_of_fill(counted: Growth) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            is_true = torch.arange(x.shape[1]) < lengths[:, None]
            return x * is_true

    x, lengths = torch.randn(3, 5), torch.tensor([5, 2, 4])
    cached = modcache.cached(Sums(), key=modcache.content_keys, lengths="lengths")
    modcache.fill(cached, [(x, lengths)], progress=False)
    assert counted()["misses"] == 3
    cached(torch.nn.functional.pad(x, (0, 3), value=7.0), lengths)
    assert counted()["hits_memory"] == 3
    plain = Sums()
    modcache.fill(
        plain,
        [{"x": x, "lengths": lengths}],
        key=modcache.content_keys,
        input=lambda batch: (batch["x"], batch["lengths"]),
        lengths="lengths",
        progress=False,
    )
    assert counted()["hits_memory"] == 3


def test_one_content_key_for_padded_rows_is_refused() -> None:
    encoder = States().requires_grad_(False).eval()
    wanted = "mask and lengths are for keys of rows, but key="
    for key in ("content", modcache.content_key):
        with pytest.raises(ValueError, match=f"cached: {wanted}"):
            modcache.cached(encoder, key=key, mask="mask")
        with pytest.raises(ValueError, match=f"fill: {wanted}"):
            modcache.fill(encoder, [(torch.ones(2, 3, dtype=torch.int64),)], key=key, mask=1)
