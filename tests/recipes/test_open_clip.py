# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/open-clip.md: each image and each text is encoded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fresh_process
import modcache
import open_clip
import photos
import pytest
import recipe
import torch
from given_open_clip import given
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

NAME = "open-clip"
IMAGES, TEXTS = 9, 3 * 2
KEPT = 2 * IMAGES + TEXTS  # samples and features of images, features of texts


def run(**changed: Any) -> dict[str, Any]:
    modcache.reset_stats()
    return recipe.run(NAME, **{**given(), **changed})


def counts() -> tuple[int, int]:
    stats = modcache.stats()
    return stats["misses"], stats["hits_memory"] + stats["hits_disk"]


@torch.no_grad()
def plain_logits(names: dict[str, Any]) -> torch.Tensor:
    """What open_clip itself says, without modcache."""
    model = names["model"].requires_grad_(False).eval()
    folder = ImageFolder("photos", names["preprocess"])
    templates = [template.format for template in names["templates"]]
    classifier = open_clip.build_zero_shot_classifier(
        model, names["tokenizer"], folder.classes, templates, num_classes_per_batch=1
    )
    found = []
    for images, _ in DataLoader(folder, batch_size=64):
        found.append(100 * model.encode_image(images, normalize=True) @ classifier)
    return torch.cat(found)


def test_it_classifies_as_open_clip_does() -> None:
    cold = torch.cat(run()["logits"])
    assert counts() == (KEPT, 0)
    warm = torch.cat(run()["logits"])
    assert counts() == (0, KEPT)
    assert torch.equal(warm, cold)
    # The library normalises with another function, whose rounding differs.
    torch.testing.assert_close(warm, plain_logits(given()), rtol=1e-5, atol=1e-4)
    modcache.set_mode("off")
    assert torch.equal(torch.cat(run()["logits"]), cold)
    assert modcache.stats()["stored"] == 0


def test_another_template_encodes_its_own_texts() -> None:
    run()
    run(templates=["a drawing of {}", "a photo of {}", "a bad photo of {}"])
    assert counts() == (3, KEPT)


def test_an_edited_image_is_encoded_anew_and_only_it() -> None:
    before = torch.cat(run()["logits"])
    photos.edit(Path("photos/squares/000004.png"))
    after = torch.cat(run()["logits"])
    assert counts() == (2, KEPT - 2)
    differs = (before != after).any(1)
    assert differs.tolist() == [place == 4 for place in range(IMAGES)]


def test_other_weights_and_another_precision_encode_anew() -> None:
    run()
    other = given()["model"].bfloat16()  # type: ignore[attr-defined]
    names = given()
    names["preprocess"].transforms.append(Bfloat16())  # type: ignore[attr-defined]
    logits = recipe.run(NAME, **{**names, "model": other})["logits"]
    assert modcache.stats()["misses"] == 2 * KEPT
    assert logits[0].dtype == torch.bfloat16
    run()
    assert counts() == (0, KEPT)


class Bfloat16:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.bfloat16()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_whole_call_in_a_block_has_the_cached_features(
    memory_format: torch.memory_format,
) -> None:
    names = run()
    clip = names["clip"].train()  # it stays in evaluation mode
    images, _, keys = next(iter(names["batches"]))
    tokens = names["tokenizer"](["a photo of circles"] * len(images))
    plain = given()["model"].eval()(images, tokens)  # type: ignore[attr-defined]
    modcache.reset_stats()
    with modcache.keys(keys):
        found = clip(images.contiguous(memory_format=memory_format), tokens)
    assert counts() == (len(images), len(images))  # the texts are new under these keys
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_workers_give_the_same_features() -> None:
    alone = torch.cat(run()["logits"])
    assert torch.equal(torch.cat(run(workers=2)["logits"]), alone)
    assert counts() == (0, IMAGES + TEXTS)  # the workers count their samples


def test_the_second_start_encodes_nothing() -> None:
    first = fresh_process.stats_of(NAME)
    assert (first["misses"], first["stored"]) == (KEPT, KEPT)
    assert fresh_process.stats_of(NAME)["misses"] == 0
