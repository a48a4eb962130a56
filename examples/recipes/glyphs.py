# SPDX-License-Identifier: Apache-2.0
"""Small real data that every machine with matplotlib has: letters, drawn, named and labelled.

A sample is a character of the font DejaVu Sans: its picture, its name in Unicode ("GREEK SMALL
LETTER ALPHA") and the script that it belongs to.
"""

from __future__ import annotations

import functools
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.utils.data import Dataset

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
SCRIPTS = ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN")
SIZE_PIXELS = 32
_BLOCKS = ((0x0041, 0x0250), (0x0370, 0x0400), (0x0400, 0x0530), (0x0531, 0x0588))


@dataclass(frozen=True)
class Letter:
    """`label` is an index into SCRIPTS."""

    character: str
    name: str
    label: int


@functools.cache
def letters() -> tuple[Letter, ...]:
    """All letters of the four scripts, in the order of Unicode."""
    found = []
    for first, last in _BLOCKS:
        for code in range(first, last):
            name = unicodedata.name(chr(code), "")
            script = name.split(" ", 1)[0]
            if script in SCRIPTS and chr(code).isalpha():
                found.append(Letter(chr(code), name, SCRIPTS.index(script)))
    return tuple(found)


def draw(character: str) -> Tensor:
    """The picture of a character: float32 [1, SIZE_PIXELS, SIZE_PIXELS], 0 for paper, 1 for ink."""
    picture = Image.new("L", (8 * SIZE_PIXELS, 8 * SIZE_PIXELS))
    pen = ImageDraw.Draw(picture)
    middle = (4 * SIZE_PIXELS, 4 * SIZE_PIXELS)
    pen.text(middle, character, 255, font=_font(), anchor="mm")
    small = picture.resize((SIZE_PIXELS, SIZE_PIXELS), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(small, np.float32) / 255).unsqueeze(0)


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONT), 6 * SIZE_PIXELS)


class Pictures(Dataset[tuple[Tensor, int]]):
    """(picture, label) by number. Drawing is the slow part, as decoding is with photos."""

    def __len__(self) -> int:
        return len(letters())

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        letter = letters()[index]
        return draw(letter.character), letter.label
