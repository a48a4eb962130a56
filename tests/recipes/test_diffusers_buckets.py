# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/diffusers-buckets.md: crops, flips and dropped captions, with the real libraries."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import diffusion_models
import modcache
import numpy as np
import pytest
import recipe
import torch
from given_diffusers_buckets import TrainStep, given
from PIL import Image, ImageOps
from test_diffusers import counted

NAME = "diffusers-buckets"
COUNT = diffusion_models.SMALL.count
VIEWS = 6


class Recorded:
    """A training step that notes what it is given."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self.load_text_encoder = step.load_text_encoder
        self.losses = step.losses
        self.latents: list[torch.Tensor] = []
        self.prompts: list[str] = []

    def __call__(self, latents: torch.Tensor, prompts: list[str]) -> None:
        self.latents.append(latents)
        self.prompts += prompts
        self._step(latents, prompts)


def training(**changes: Any) -> dict[str, Any]:
    """Runs the recipe; the names that it leaves, and what the run counted and drew."""
    torch.set_num_threads(1)
    names: dict[str, Any] = {**given(), **changes}
    step = names["train_step"] = Recorded(names["train_step"])
    modcache.reset_stats()
    torch.manual_seed(1)
    names = recipe.run(NAME, **names)
    names["losses"] = step.losses
    names["random"] = torch.get_rng_state().numpy().tobytes()
    names["loads"] = (names["load_vae"].calls, step.load_text_encoder.calls)
    names["counts"] = counted()
    return names


def crops_of(names: dict[str, Any], number: int) -> list[tuple[Any, ...]]:
    """All crops and flips of an image."""
    return [(names["digests"][number], *names["sizes"][number], view) for view in range(VIEWS)]


def drawn(names: dict[str, Any], number: int) -> list[int]:
    """The crops and flips of an image that the cache has."""
    crops = enumerate(crops_of(names, number))
    return [view for view, crop in crops if is_stored(names["posteriors"], crop)]


def is_stored(posteriors: Any, crop: tuple[Any, ...]) -> bool:
    with modcache.mode("read"):
        modcache.reset_stats()
        posteriors([crop])
        return "misses" not in counted()


def fill_all(names: dict[str, Any]) -> None:
    batches = [(crops_of(names, number),) for number in range(len(names["images"]))]
    modcache.fill(names["posteriors"], batches, progress=False)
    modcache.reset_stats()


def start(folder: Path) -> tuple[Any, ...]:
    """Starts the program in a process of its own, with the cache directory in this folder."""
    with multiprocessing.get_context("spawn").Pool(1) as another:
        return another.apply(training_in, [str(folder)])


def training_in(folder: str) -> tuple[Any, ...]:
    os.chdir(folder)
    decoded = []
    convert = Image.Image.convert

    def counting(image: Image.Image, *mode: Any) -> Image.Image:
        decoded.append(image)
        return convert(image, *mode)

    Image.Image.convert = counting  # type: ignore[method-assign]
    names = training()
    return *(names[name] for name in ("losses", "random", "loads", "counts")), len(decoded)


def test_losses_and_draws_are_those_without_the_cache() -> None:
    with modcache.mode("off"):
        plain = training()
    cold = training()
    assert plain["counts"] == {"bypassed_off": 4 * COUNT}
    assert cold["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert cold["random"] == plain["random"]
    assert {latents.shape[2:] for latents in cold["train_step"].latents} == {
        (16, 16),
        (16, 24),
        (16, 8),
    }


def test_a_second_start_loads_no_encoder_and_decodes_no_image(tmp_path: Path) -> None:
    losses, random, loads, counts, decoded = start(tmp_path)
    assert (loads, decoded > 0, "misses" in counts) == ((1, 1), True, True)
    warm = start(tmp_path)
    assert warm[:3] == (losses, random, (0, 0))
    assert ("misses" in warm[3], warm[4]) == (False, 0)


def test_crops_and_flips_differ_between_epochs_and_are_those_of_the_image() -> None:
    names = training(epochs=3)
    views = [drawn(names, number) for number in range(COUNT)]
    assert all(1 <= len(found) <= 3 for found in views)
    assert sum(map(len, views)) > COUNT
    assert {view // 3 for found in views for view in found} == {0, 1}
    number = 1  # is wider than high
    size = names["sizes"][number]
    with Image.open(names["images"][number]) as image:
        left = ImageOps.mirror(ImageOps.fit(image, size, centering=(0, 0)))
    pixels = torch.from_numpy(np.array(left)).permute(2, 0, 1)[None] / 127.5 - 1
    wanted = names["vae"].load().encode(pixels).latent_dist.mean
    found = names["posteriors"](crops_of(names, number)).mean
    assert torch.allclose(found[3:4], wanted, atol=1e-5)
    assert not torch.allclose(found[0:1], wanted, atol=1e-2)


def test_an_edited_image_is_encoded_anew_and_nothing_else() -> None:
    names = training()
    fill_all(names)
    before = [names["posteriors"](crops_of(names, number)).mean for number in range(COUNT)]
    diffusion_models.edit(names["images"][4])
    again = training(images=names["images"])
    assert again["loads"] == (1, 0)
    assert 1 <= again["counts"]["misses"] == len(drawn(again, 4)) <= 2
    after = [again["posteriors"](crops_of(again, number)).mean for number in range(COUNT)]
    changed = [not torch.equal(*both) for both in zip(before, after, strict=True)]
    assert changed == [number == 4 for number in range(COUNT)]


def test_one_new_image_runs_alone() -> None:
    names = training()
    fill_all(names)
    more = [*names["images"], diffusion_models.images([(64, 64)] * (COUNT + 1))[-1]]
    again = training(images=more, captions=[*names["captions"], "a new caption"])
    captions = set(again["train_step"].prompts) - set(names["train_step"].prompts)
    assert again["counts"]["misses"] == len(drawn(again, COUNT)) + len(captions)


def test_renamed_images_hit() -> None:
    names = training()
    renamed = [path.with_name(f"another {path.name}") for path in names["images"]]
    for path, other in zip(names["images"], renamed, strict=True):
        path.rename(other)
    again = training(images=renamed)
    assert (again["losses"], again["loads"]) == (names["losses"], (0, 0))


def test_captions_are_dropped_anew_in_each_epoch() -> None:
    names = training(epochs=6)
    prompts = names["train_step"].prompts
    dropped = [prompts[n : n + COUNT].count("") for n in range(0, len(prompts), COUNT)]
    assert len(set(dropped)) > 1
    stored = sum(len(drawn(names, number)) for number in range(COUNT))
    assert names["counts"]["misses"] - stored == len(set(prompts)) == COUNT + 1


def test_an_image_that_is_edited_during_the_run_is_not_stored_as_the_earlier_one() -> None:
    names = given()
    images: Any = names["images"]

    class EditsAll(Recorded):
        def __call__(self, latents: torch.Tensor, prompts: list[str]) -> None:
            for path in images if not self.latents else ():
                diffusion_models.edit(path)
            super().__call__(latents, prompts)

    step = EditsAll(names["train_step"])  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="edited during the run"):
        recipe.run(NAME, **{**names, "train_step": step})
    assert len(step.latents) == 1
