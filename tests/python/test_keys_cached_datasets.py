# SPDX-License-Identifier: Apache-2.0
"""Keys of samples that a CachedDataset made: augmented, from files, or with another transform."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from keyed_modules import Growth, Tower
from modcache._cached.keys import keys
from modcache._call.key_column import texts_of
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

SIZE = 6


class Augmented(Dataset[Any]):
    """Each sample differs a little each time that it is made."""

    def __init__(self, amount: float = 1e-3) -> None:
        self.amount = amount

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return index + self.amount * torch.randn(4), index


class Files(Dataset[Any]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.load(self.paths[index])

    def version(self, index: int) -> str:
        return f"{self.paths[index]}@{self.paths[index].stat().st_mtime_ns}"


def tower() -> torch.nn.Module:
    torch.manual_seed(0)
    return modcache.cached(Tower(), freeze=True)


def names(dataset: Any) -> list[str]:
    """The keys of one pass over a dataset."""
    return [key for *_, column in DataLoader(dataset, 4) for key in texts_of(column)]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_variant_of_a_sample_is_encoded_once(counted: Growth, workers: int) -> None:
    samples = modcache.CachedDataset(Augmented(), variants=2)
    cached = tower()
    loader = DataLoader(
        modcache.KeyedDataset(samples, "train"), 4, shuffle=True, num_workers=workers
    )
    for epoch in range(4):
        samples.set_epoch(epoch)
        for x, _, column in loader:
            with keys(column):
                found = cached(x)
            torch.testing.assert_close(found, torch.relu(cached.linear(x)), rtol=0, atol=1e-6)
    grown = counted()
    assert grown["stored"] - SIZE * 2 in (0, SIZE * 2)  # features, and samples of this process
    assert "key_conflicts" not in grown


def test_the_variants_of_a_sample_have_keys_of_their_own() -> None:
    samples = modcache.CachedDataset(Augmented(), variants=2)
    dataset = modcache.KeyedDataset(samples, "train")
    seen = []
    for epoch in range(3):
        samples.set_epoch(epoch)
        seen.append(names(dataset))
        assert [dataset.key_of(index) for index in range(SIZE)] == seen[-1]
        assert dataset.key_of(-1) == seen[-1][-1]
    assert not set(seen[0]) & set(seen[1])
    assert seen[2] == seen[0]
    assert all(key.startswith(f"train/{place}") for place, key in enumerate(seen[0]))


def test_requests_that_count_as_epochs_have_the_keys_of_their_variants() -> None:
    dataset = modcache.KeyedDataset(modcache.CachedDataset(Augmented(), variants=2), "train")
    turns = [dataset[0] for _ in range(4)]
    key = [bytes(column) for *_, column in turns]
    assert key[0] != key[1]
    assert (key[2], key[3]) == (key[0], key[1])
    assert torch.equal(turns[2][0], turns[0][0])


@pytest.mark.parametrize(
    "other",
    [
        lambda: modcache.CachedDataset(Augmented(amount=2e-3)),
        lambda: modcache.CachedDataset(Augmented(), seed=1),
        lambda: modcache.CachedDataset(Augmented(), key=lambda index: f"edited/{index}"),
        lambda: modcache.CachedDataset(Augmented(), scope="augmented@2"),
    ],
)
def test_what_makes_other_samples_makes_other_keys(other: Callable[[], Any]) -> None:
    first = names(modcache.KeyedDataset(modcache.CachedDataset(Augmented()), "train"))
    again = names(modcache.KeyedDataset(modcache.CachedDataset(Augmented()), "train"))
    assert again == first
    assert not set(names(modcache.KeyedDataset(other(), "train"))) & set(first)


def test_a_file_that_was_edited_is_encoded_anew_and_only_it(
    counted: Growth, tmp_path: Path
) -> None:
    """The edit is too small to be seen in the sample of the input that an entry has."""
    folder = tmp_path / ("a long name " * 6)
    folder.mkdir()
    paths = [folder / f"{place}.pt" for place in range(3)]
    for place, path in enumerate(paths):
        torch.save(torch.full((4,), float(place)), path)
    files = Files(paths)
    dataset = modcache.KeyedDataset(modcache.CachedDataset(files, key=files.version), "train")
    assert dataset.key_of(0).startswith("train/")
    cached = tower()

    def encoded() -> list[torch.Tensor]:
        found = []
        for x, column in DataLoader(dataset, 3):
            with keys(column):
                found.append(cached(x))
        return found

    before = encoded()
    counted()
    torch.save(torch.full((4,), 1.0001), paths[1])
    os.utime(paths[1], ns=(1, 1))
    after = encoded()
    assert counted()["misses"] == 1 + 1  # the sample and its features
    assert [
        torch.equal(*rows) for rows in zip(torch.cat(before), torch.cat(after), strict=True)
    ] == [True, False, True]


@pytest.mark.parametrize(
    "part",
    [
        lambda whole: Subset(whole, [1, 2]),
        lambda whole: random_split(whole, [2, 4])[0],
        lambda whole: ConcatDataset([whole, whole]),
        lambda whole: Subset(ConcatDataset([[1], whole]), [1, 2]),
    ],
)
def test_a_part_of_a_dataset_with_variants_is_keyed_first_and_split_then(
    part: Callable[[Any], Any],
) -> None:
    one = modcache.CachedDataset(Augmented())
    assert len(modcache.KeyedDataset(part(one), "train")) >= 2
    several = modcache.CachedDataset(Augmented(), variants=2)
    with pytest.raises(ValueError, match="samples differ from epoch to epoch"):
        modcache.KeyedDataset(part(several), "train")
    assert names(part(modcache.KeyedDataset(several, "train")))


def test_a_split_leaves_room_for_the_digest_of_a_name() -> None:
    samples = modcache.CachedDataset(Augmented(), key=lambda index: f"{index}" * 99)
    assert len(modcache.KeyedDataset(samples, "x" * 30).key_of(0)) == 63
    with pytest.raises(ValueError, match="63 are the limit"):
        modcache.KeyedDataset(samples, "x" * 31)
