# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/timm-torchvision.md: what is encoded, and that the head learns the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fresh_process
import modcache
import photos
import pytest
import recipe
import torch
from given_timm_torchvision import given
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

NAME = "timm-torchvision"
TRAIN, VAL, VARIANTS = 9, 6, 4
KEPT = 2 * (TRAIN * VARIANTS + VAL)  # samples and features
# A backbone may add the numbers of a row in another order where its batch is another one, and the
# features of an epoch come from batches of an earlier one.
SAME = {"rtol": 1e-4, "atol": 1e-5}


def run(**changed: Any) -> dict[str, Any]:
    modcache.reset_stats()
    library = changed.pop("library", "timm")
    return recipe.run(NAME, **{**given(library=library), **changed})


def counts() -> tuple[int, int]:
    stats = modcache.stats()
    return stats["misses"], stats["hits_memory"] + stats["hits_disk"]


def plain_loop(given: dict[str, Any]) -> torch.nn.Linear:
    """The recipe's loop without modcache."""
    train = ImageFolder("train", given["augment"])
    batches = DataLoader(train, 32, shuffle=True)
    head = torch.nn.Linear(given["width"], len(train.classes))
    backbone = given["backbone"].requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for _ in range(given["epochs"]):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(head(backbone(images)), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return head


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_the_head_learns_what_it_learns_with_the_cache_off(library: str) -> None:
    cold = run(library=library)
    assert counts() == (KEPT, 0)
    warm = run(library=library)
    assert counts() == (0, KEPT)
    modcache.set_mode("off")
    plain = run(library=library)
    assert modcache.stats()["stored"] == 0
    assert torch.equal(cold["head"].weight, warm["head"].weight)
    torch.testing.assert_close(warm["head"].weight, plain["head"].weight, **SAME)
    assert cold["right"] == warm["right"] == plain["right"]


def test_the_head_learns_what_it_learns_without_modcache() -> None:
    """With a transform that is not random, since a sample's own draws are the cache's."""
    names = given()
    names["augment"] = names["prepare"]
    learned = recipe.run(NAME, **names)["head"]
    names = given()
    names["augment"] = names["prepare"]
    torch.testing.assert_close(learned.weight, plain_loop(names).weight, **SAME)


def test_epochs_after_the_variants_encode_nothing() -> None:
    run(epochs=VARIANTS)
    run(epochs=3 * VARIANTS)
    assert counts() == (0, 2 * (TRAIN * VARIANTS * 3 + VAL))


def test_flips_and_crops_differ_between_epochs() -> None:
    names = run(epochs=1)
    train, model = names["train"], names["model"]
    images, features = [], []
    for epoch in range(VARIANTS + 1):
        train.set_epoch(epoch)
        batch, _, keys = next(iter(DataLoader(modcache.KeyedDataset(train, "train"), TRAIN)))
        with modcache.keys(keys):
            features.append(model[0](batch))
        images.append(batch)
    for seen in (images, features):
        for one in range(VARIANTS):
            for row in range(TRAIN):
                others = (seen[other][row] for other in range(VARIANTS) if other != one)
                assert not any(torch.equal(seen[one][row], other) for other in others)
        assert torch.equal(seen[VARIANTS], seen[0])
    for batch, found in zip(images, features, strict=True):
        torch.testing.assert_close(found, names["backbone"](batch), **SAME)


def test_an_edited_photo_is_encoded_anew_and_only_it() -> None:
    run()
    photos.edit(Path("train/squares/000004.png"))
    run()
    assert counts() == (2 * VARIANTS, KEPT - 2 * VARIANTS)


def test_another_transform_encodes_its_own_images() -> None:
    names = run(epochs=1)
    other = run(epochs=1, prepare=names["augment"])
    assert counts() == (2 * VAL, 2 * TRAIN)
    assert not torch.equal(
        torch.stack([image for image, _ in names["val"]]),
        torch.stack([image for image, _ in other["val"]]),
    )


def test_workers_give_the_same_head() -> None:
    alone = run()
    modcache.clear()
    with_workers = run(workers=2)
    assert counts()[0] == KEPT // 2  # the workers count their samples
    assert torch.equal(with_workers["head"].weight, alone["head"].weight)
    again = run(workers=2)
    assert counts() == (0, KEPT // 2)
    assert torch.equal(again["head"].weight, alone["head"].weight)


def test_the_second_start_encodes_nothing() -> None:
    first = fresh_process.stats_of(NAME)
    assert (first["misses"], first["stored"]) == (KEPT, KEPT)
    second = fresh_process.stats_of(NAME)
    assert second["misses"] == 0
    assert second["hits_disk"] + second["hits_memory"] == KEPT
