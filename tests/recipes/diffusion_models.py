# SPDX-License-Identifier: Apache-2.0
"""The parts of a diffusion model, small and random, and a folder of captioned images."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision_operators

torchvision_operators.declare_missing()  # before diffusers and transformers, which look for it

from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Whitespace  # noqa: E402
from tokenizers.processors import TemplateProcessing  # noqa: E402
from torch import nn  # noqa: E402
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast  # noqa: E402

WORDS = ("a red green blue cat dog bird sits runs sleeps on under the old tree house sea").split()  # noqa: SIM905
SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[UNK]")
_folders: list[Any] = []  # each is removed when this process ends


class Size(NamedTuple):
    """How large a model is: the VAE, which halves an image between its blocks; the text encoder,
    its width and layers; and the images."""

    channels: tuple[int, ...]
    width: int
    layers: int
    image: int
    count: int


SMALL = Size(channels=(8, 16), width=16, layers=2, image=32, count=8)
LARGE = Size(channels=(32, 64, 64, 64), width=256, layers=8, image=128, count=48)


class CountedLoad:
    """A function that makes a module, and counts its calls."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self._make = make
        self.calls = 0

    def __call__(self) -> nn.Module:
        self.calls += 1
        torch.manual_seed(0)
        return self._make().eval()


def vae(size: Size) -> CountedLoad:
    blocks = len(size.channels)
    return CountedLoad(
        lambda: AutoencoderKL(
            block_out_channels=size.channels,
            down_block_types=("DownEncoderBlock2D",) * blocks,
            up_block_types=("UpDecoderBlock2D",) * blocks,
            norm_num_groups=4,
        )
    )


def text_encoder(size: Size) -> CountedLoad:
    config = CLIPTextConfig(
        vocab_size=len(WORDS) + len(SPECIAL),
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return CountedLoad(lambda: CLIPTextModel(config))


def tokenizer() -> PreTrainedTokenizerFast:
    """Knows WORDS alone."""
    numbers = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    made = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 1), ("[EOS]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", eos_token="[EOS]", model_max_length=77
    )


def unet(size: Size) -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        cross_attention_dim=size.width,
    )


def scheduler() -> DDPMScheduler:
    return DDPMScheduler(num_train_timesteps=100)


def captions(count: int) -> list[str]:
    """Some of 3 words, the longest of 22."""
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 23, (count,), generator=rng).tolist()
    draws = [torch.randint(len(WORDS), (length,), generator=rng).tolist() for length in lengths]
    return [" ".join(WORDS[number] for number in draw) for draw in draws]


def image(seed: int, width: int, height: int) -> Image.Image:
    """Smooth random colours."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randint(256, (4, 4, 3), dtype=torch.uint8, generator=rng)
    return Image.fromarray(coarse.numpy()).resize((width, height), Image.Resampling.BILINEAR)


def images(sizes: list[tuple[int, int]]) -> list[Path]:
    """Writes one image for each size, into a folder of this process."""
    folder = tempfile.TemporaryDirectory()
    _folders.append(folder)
    paths = [Path(folder.name) / f"{number:03}.png" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        image(number, *size).save(path)
    return paths


def edit(path: Path) -> None:
    """Turns an image upside down. Its file keeps name and time."""
    was = path.stat()
    with Image.open(path) as before:
        after = before.transpose(Image.Transpose.ROTATE_180)
    after.save(path)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
