# SPDX-License-Identifier: Apache-2.0
"""Ways in which a trainer of diffusion models keeps latents and states of captions.

``NpzPerImage`` does as trainers of the kind of sd-scripts document it. The others are the recipes
docs/recipes/diffusers.md and diffusers-buckets.md.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import modcache
import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))
import diffusion_models

SIZE = diffusion_models.Size(channels=(16, 32, 32, 32), width=768, layers=2, image=256, count=500)
BATCH = 8
LONGEST = 77
LATENTS = (4, SIZE.image // 8, SIZE.image // 8)


class Ready(NamedTuple):
    """What a step needs: latents [B, 4, h, w]; states [B, longest, width]; a mask of these."""

    latents: torch.Tensor
    states: torch.Tensor
    mask: torch.Tensor


class Cache:
    """A way to keep them. Images lie in a folder, the captions beside them as text."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted((folder / "images").glob("*.png"))
        self.captions = [path.with_suffix(".txt").read_text() for path in self.paths]
        self.tokenizer: Any = diffusion_models.tokenizer()
        self.encoded = 0  # images that went through the VAE, each flip by itself
        self.encoded_captions = 0

    def start(self) -> None:
        """Does what comes before the first step, with a warm cache as well."""

    def batch(self, numbers: list[int], is_flipped: bool) -> Ready:
        raise NotImplementedError

    def fill(self) -> None:
        for numbers in batches(len(self.paths)):
            for is_flipped in (False, True):
                self.batch(numbers, is_flipped)
        modcache.flush()


def batches(count: int, order: torch.Tensor | None = None) -> list[list[int]]:
    order = torch.arange(count) if order is None else order
    return [part.tolist() for part in order.split(BATCH)]


def pixels_of(path: Path, is_flipped: bool) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)
    return (pixels.flip(2) if is_flipped else pixels) / 127.5 - 1


def stacked(paths: list[Path], is_flipped: bool) -> torch.Tensor:
    return torch.stack([pixels_of(path, is_flipped) for path in paths])


def posterior_of(paths: list[Path]) -> torch.Tensor:
    """The means of the posteriors, without any cache."""
    with torch.no_grad():
        return diffusion_models.vae(SIZE)().encode(stacked(paths, False)).latent_dist.mean


class NpzPerImage(Cache):
    """A file of latents and one of states for each image, named after it.

    A file that is there is taken if its arrays have the expected shapes. Latents are one sample of
    the posterior, with another one for the flipped image; captions are padded to the longest.
    """

    name = ".npz per image"

    def latents_file(self, path: Path) -> Path:
        return path.with_name(f"{path.stem}_{SIZE.image:04}x{SIZE.image:04}_sd.npz")

    def states_file(self, path: Path) -> Path:
        return path.with_name(f"{path.stem}_te_outputs.npz")

    def start(self) -> None:
        """Checks each file, and encodes what is missing."""
        missing = [path for path in self.paths if not self._has(self.latents_file(path), "latents")]
        if missing:
            vae = diffusion_models.vae(SIZE)()
            for numbers in batches(len(missing)):
                self._encode(vae, [missing[number] for number in numbers])
        captions = [
            (path, caption)
            for path, caption in zip(self.paths, self.captions, strict=True)
            if not self._has(self.states_file(path), "states")
        ]
        if captions:
            text_encoder = diffusion_models.text_encoder(SIZE)()
            for numbers in batches(len(captions)):
                self._encode_captions(text_encoder, [captions[number] for number in numbers])

    def _has(self, file: Path, array: str) -> bool:
        shapes = {"latents": LATENTS, "states": (LONGEST, SIZE.width)}
        if not file.exists():
            return False
        with np.load(file) as arrays:
            return array in arrays and arrays[array].shape == shapes[array]

    @torch.no_grad()
    def _encode(self, vae: Any, paths: list[Path]) -> None:
        plain, flipped = (
            vae.encode(stacked(paths, is_flipped)).latent_dist.sample().numpy()
            for is_flipped in (False, True)
        )
        for path, latents, latents_flipped in zip(paths, plain, flipped, strict=True):
            np.savez(self.latents_file(path), latents=latents, latents_flipped=latents_flipped)
        self.encoded += 2 * len(paths)

    @torch.no_grad()
    def _encode_captions(self, text_encoder: Any, captions: list[tuple[Path, str]]) -> None:
        tokens = self.tokenizer(
            [caption for _, caption in captions],
            padding="max_length", max_length=LONGEST, return_tensors="pt",
        )  # fmt: skip
        states = text_encoder(**tokens).last_hidden_state.numpy()
        masks = tokens["attention_mask"].numpy()
        for (path, _), state, mask in zip(captions, states, masks, strict=True):
            np.savez(self.states_file(path), states=state, mask=mask)
        self.encoded_captions += len(captions)

    def fill(self) -> None:
        self.start()

    def batch(self, numbers: list[int], is_flipped: bool) -> Ready:
        latents, states, masks = [], [], []
        for number in numbers:
            with np.load(self.latents_file(self.paths[number])) as arrays:
                latents.append(arrays["latents_flipped" if is_flipped else "latents"])
            with np.load(self.states_file(self.paths[number])) as arrays:
                states.append(arrays["states"])
                masks.append(arrays["mask"])
        return Ready(*(torch.from_numpy(np.stack(rows)) for rows in (latents, states, masks)))


class _Modcache(Cache):
    """Captions as both recipes have them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        modcache.configure(dir=folder / "cache")
        self.vae = modcache.lazy(diffusion_models.vae(SIZE), scope="vae@1")
        text_encoder = modcache.lazy(diffusion_models.text_encoder(SIZE), scope="text@1")
        self._text = modcache.cached(text_encoder, key="prompts", mask="attention_mask")

    @torch.no_grad()
    def batch(self, numbers: list[int], is_flipped: bool) -> Ready:
        before = modcache.stats()["misses"]
        latents = self.posterior(numbers, is_flipped).sample()
        between = modcache.stats()["misses"]
        captions = [self.captions[number] for number in numbers]
        tokens = self.tokenizer(captions, padding=True, return_tensors="pt")
        keys = [("prompt", caption) for caption in captions]
        states = self._text(**tokens, prompts=keys).last_hidden_state
        self.encoded += between - before
        self.encoded_captions += modcache.stats()["misses"] - between
        return Ready(latents, states, tokens["attention_mask"])

    def posterior(self, numbers: list[int], is_flipped: bool) -> Any:
        raise NotImplementedError


class ModcachePixels(_Modcache):
    """The key of an image is its pixels, so that it is decoded each time."""

    name = "modcache, pixels as keys"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cached: Any = modcache.cached(
            self.vae, key=modcache.content_keys, methods=("encode",)
        )

    def posterior(self, numbers: list[int], is_flipped: bool) -> Any:
        paths = [self.paths[number] for number in numbers]
        return self._cached.encode(stacked(paths, is_flipped)).latent_dist


class ModcacheFiles(_Modcache):
    """The key of an image is the digest of its file, which is read once in each process."""

    name = "modcache, files as keys"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._digests: list[str] = []
        path_of: dict[str, Path] = {}
        self._path_of = path_of
        vae: Any = self.vae

        @modcache.cached(key="views", scope="vae@1, views@1")
        def posteriors(views: list[tuple[str, int]]) -> Any:
            pixels = [pixels_of(path_of[digest], flipped == 1) for digest, flipped in views]
            return vae.load().encode(torch.stack(pixels)).latent_dist

        self._posteriors = posteriors

    def start(self) -> None:
        self._digests = [sha256(path.read_bytes()).hexdigest() for path in self.paths]
        self._path_of.update(zip(self._digests, self.paths, strict=True))

    def fill(self) -> None:
        self.start()
        super().fill()

    def posterior(self, numbers: list[int], is_flipped: bool) -> Any:
        return self._posteriors([(self._digests[number], int(is_flipped)) for number in numbers])


CACHES: dict[str, type[Cache]] = {
    kind.name: kind for kind in (NpzPerImage, ModcachePixels, ModcacheFiles)
}
