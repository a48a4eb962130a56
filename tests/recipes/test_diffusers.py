# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/diffusers.md: a U-Net on latents and prompts, with the real libraries."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import diffusion_models
import modcache
import pytest
import recipe
import torch
from given_diffusers import Captioned, given
from transformers import T5Config, T5EncoderModel

NAME = "diffusers"
COUNT = diffusion_models.SMALL.count
COUNTERS = ("misses", "stored", "hits_memory", "hits_disk", "corrupt")


def counted() -> dict[str, int]:
    """The counters since the last call that are not 0, and those of what was not cached."""
    modcache.flush()
    counts = modcache.stats()
    modcache.reset_stats()
    names = [*COUNTERS, *(name for name in counts if name.startswith("bypassed"))]
    return {name: counts[name] for name in names if counts[name]}


def training(**changes: Any) -> dict[str, Any]:
    """Runs the recipe; the names that it leaves, and what the run counted and drew."""
    torch.set_num_threads(1)
    names: dict[str, Any] = {**given(), **changes}
    modcache.reset_stats()
    torch.manual_seed(1)
    names = recipe.run(NAME, **names)
    names["random"] = torch.get_rng_state().numpy().tobytes()
    names["loads"] = (names["load_vae"].calls, names["load_text_encoder"].calls)
    names["counts"] = counted()
    return names


def training_in(folder: str) -> tuple[Any, ...]:
    os.chdir(folder)
    names = training()
    pixels = torch.stack([image for image, _ in names["dataset"]])
    stored = names["vae"].encode(pixels).latent_dist.parameters
    return tuple(names[name] for name in ("losses", "random", "loads", "counts")), stored.numpy()


def start(folder: Path) -> tuple[Any, ...]:
    """Starts the program, with the cache directory in this folder, and images in a new one.

    Returns its losses, its random state, how often it loaded VAE and text encoder, its counters;
    and the parameters of the posteriors of all images.
    """
    with multiprocessing.get_context("spawn").Pool(1) as another:
        return another.apply(training_in, [str(folder)])


def damage(directory: Path, content: bytes) -> None:
    """Flips one byte of a stored value."""
    for segment in directory.rglob("*.seg"):
        data = bytearray(segment.read_bytes())
        if (place := data.find(content)) >= 0:
            data[place + len(content) // 2] ^= 0xFF
            segment.write_bytes(data)
            return
    raise AssertionError("no segment has these bytes")


def test_losses_and_draws_are_those_without_the_cache() -> None:
    with modcache.mode("off"):
        plain = training()
    cold = training()
    assert plain["counts"] == {"bypassed_off": 4 * COUNT}
    assert cold["counts"] == {"misses": 2 * COUNT, "stored": 2 * COUNT, "hits_memory": 2 * COUNT}
    assert cold["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert len(set(cold["losses"])) == len(cold["losses"]) == 4
    assert cold["random"] == plain["random"]


def test_a_second_start_loads_no_encoder_and_learns_the_same(tmp_path: Path) -> None:
    """Although the images are in another folder, and the cache directory was moved."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    (losses, random, loads, counts), _ = start(first)
    assert (loads, counts["misses"]) == ((1, 1), 2 * COUNT)
    shutil.move(first / "cache", second / "cache")
    warm, _ = start(second)
    assert warm[:3] == (losses, random, (0, 0))
    assert sum(count for name, count in warm[3].items() if name.startswith("hits")) == 4 * COUNT
    assert "misses" not in warm[3]


def test_a_damaged_entry_is_encoded_again_and_training_goes_on(tmp_path: Path) -> None:
    (losses, random, _, _), posteriors = start(tmp_path)
    # The values lie with channels last, as the images do.
    damage(tmp_path / "cache", posteriors[5].transpose(1, 2, 0).tobytes())
    warm, again = start(tmp_path)
    assert warm[0] == pytest.approx(losses, rel=1e-5)
    assert warm[1:3] == (random, (1, 0))
    assert (warm[3]["corrupt"], warm[3]["misses"], warm[3]["stored"]) == (1, 1, 1)
    assert torch.allclose(torch.tensor(again), torch.tensor(posteriors), atol=1e-5)


def test_an_edited_image_is_encoded_anew_and_nothing_else() -> None:
    names = training()
    dataset = names["dataset"]
    before = names["vae"].encode(torch.stack([image for image, _ in dataset])).latent_dist
    diffusion_models.edit(dataset.paths[3])
    again = training(dataset=dataset)
    assert (again["counts"]["misses"], again["loads"]) == (1, (1, 0))
    pixels = torch.stack([image for image, _ in dataset])
    after = again["vae"].encode(pixels).latent_dist
    changed = (after.mean != before.mean).flatten(1).any(1)
    assert changed.tolist() == [number == 3 for number in range(COUNT)]
    wanted = given()["load_vae"]().encode(pixels).latent_dist  # type: ignore[operator]
    assert torch.allclose(after.mean, wanted.mean, atol=1e-5)


def test_one_new_image_runs_alone() -> None:
    old = training()["dataset"]
    paths = diffusion_models.images([(32, 32)] * (COUNT + 1))
    more = Captioned(paths, [*old.captions, "a new caption"])
    assert training(dataset=more)["counts"]["misses"] == 2


def test_a_caption_is_found_whatever_its_batch_is_padded_to() -> None:
    names = training()
    captions = sorted(names["dataset"].captions, key=lambda caption: len(caption.split()))

    def encoded(*batch: str) -> torch.Tensor:
        tokens = names["tokenizer"](list(batch), padding=True, return_tensors="pt")
        keys = [("prompt", caption) for caption in batch]
        return names["text_encoder"](**tokens, prompts=keys).last_hidden_state  # type: ignore[no-any-return]

    short, long = encoded(captions[0]), encoded(captions[-1])
    both = encoded(captions[0], captions[-1])
    assert counted() == {"hits_memory": 4}
    length = short.shape[1]
    assert length < both.shape[1]
    assert torch.equal(both[:1, :length], short)
    assert torch.equal(both[1:], long)
    assert not both[0, length:].any()
    tokens = names["tokenizer"](captions[:1], return_tensors="pt")
    wanted = given()["load_text_encoder"]()(**tokens)  # type: ignore[operator]
    assert torch.allclose(short, wanted.last_hidden_state, atol=1e-5)


def test_each_step_draws_its_sample_of_a_posterior() -> None:
    names = training()
    pixels = torch.stack([image for image, _ in names["dataset"]])
    one, other = (names["vae"].encode(pixels).latent_dist for _ in range(2))
    assert counted() == {"hits_memory": 2 * COUNT}
    assert torch.equal(one.parameters, other.parameters)
    assert not torch.equal(one.sample(), other.sample())


class Flipped(Captioned):
    """Flips at random, and counts the flips."""

    flips = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        pixels, caption = super().__getitem__(index)
        is_flipped = torch.rand(()) < 0.5
        self.flips += int(is_flipped)
        return (pixels.flip(2) if is_flipped else pixels), caption


def test_flips_differ_between_epochs_and_each_is_encoded_once() -> None:
    dataset: Any = given()["dataset"]
    cold = training(dataset=Flipped(dataset.paths, dataset.captions), epochs=6)
    assert 0 < cold["dataset"].flips < 6 * COUNT
    assert COUNT < cold["counts"]["misses"] - COUNT <= 2 * COUNT
    warm = training(dataset=Flipped(dataset.paths, dataset.captions), epochs=6)
    assert (warm["losses"], warm["random"]) == (cold["losses"], cold["random"])
    assert (warm["dataset"].flips, warm["loads"]) == (cold["dataset"].flips, (0, 0))


def test_after_a_fill_the_training_does_not_load_the_vae() -> None:
    names = training(epochs=0)
    batches = torch.stack([image for image, _ in names["dataset"]]).split(3)
    assert modcache.fill(names["vae"].encode, batches, progress=False).runs == COUNT
    names["vae"].unload()
    assert not names["vae"].loaded
    later = training()
    assert (later["loads"], later["counts"]["misses"]) == ((0, 1), COUNT)


def test_a_text_encoder_of_another_kind() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    load = diffusion_models.CountedLoad(lambda: T5EncoderModel(config))
    with modcache.mode("off"):
        plain = training(load_text_encoder=load)
    cold = training(load_text_encoder=load)
    warm = training(load_text_encoder=load)
    assert cold["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert (cold["counts"]["misses"], warm["counts"]) == (2 * COUNT, {"hits_memory": 4 * COUNT})
    assert (warm["losses"], warm["random"]) == (cold["losses"], cold["random"])
