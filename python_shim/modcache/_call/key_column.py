# SPDX-License-Identifier: Apache-2.0
"""Keys as a column of a batch: 64 bytes for each row, which every collator and device takes along.

The first byte is 255. The text follows in UTF-8, which has no such byte, and zeros to the end, so
that no other tensor is taken for keys, such as a white image.
"""

from __future__ import annotations

from typing import Any

import torch

COLUMN = "modcache_keys"  # the name that it has in a batch
WIDTH = 64
MARK = 255


def column_of(key: str) -> Any:
    """Returns a NumPy array of uint8, [64], since all collators stack those.

    Raises:
        ValueError: the key has more than 63 bytes.
    """
    import numpy

    text = key.encode("utf-8")
    if not fits(key):
        raise ValueError(f"the key {key!r} has {len(text)} bytes, and {WIDTH - 1} are the limit.")
    return numpy.frombuffer(bytes([MARK]) + text.ljust(WIDTH - 1, b"\0"), dtype="uint8").copy()


def fits(key: str) -> bool:
    """Whether a column has room for the key."""
    return len(key.encode("utf-8")) < WIDTH


def is_column(value: object) -> bool:
    """Whether it is a tensor [B, 64] of keys, of any integer type, and each row is one."""
    return (
        isinstance(value, torch.Tensor)
        and not value.is_floating_point()
        and not value.is_complex()
        and value.dim() == 2
        and value.shape[1] == WIDTH
        and bool((value[:, 0] == MARK).all())
        and all(map(_text_in, value.tolist()))
    )


def _text_in(numbers: list[int]) -> str:
    """Returns the key in a row; "": it has none."""
    try:
        text = bytes(numbers[1:]).decode("utf-8").rstrip("\0")
    except ValueError:  # no bytes, or no text
        return ""
    return "" if "\0" in text else text


def texts_of(column: torch.Tensor) -> list[str]:
    """Returns the keys. REQUIRES: ``is_column``."""
    return [_text_in(row) for row in column.tolist()]
