# SPDX-License-Identifier: Apache-2.0
"""Digests that stand for data in what the library gets of an input.

Each is four tensors of int64: of one number for each row, or of no dimension for a whole input.
They have no dimension after the rows, so that padded rows beside them never get a digest cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

DIGEST_BYTES = 32
_NUMBERS = DIGEST_BYTES // 8


def view_of_digest(digest: bytes) -> tuple[torch.Tensor, ...]:
    """One digest as the library gets it: four tensors, int64 []."""
    return tuple(numbers[0] for numbers in view_of_digests([digest]))


def view_of_digests(digests: Iterable[bytes]) -> tuple[torch.Tensor, ...]:
    """One digest for each row as the library gets them: four tensors, int64 [B]."""
    joined = bytearray(b"".join(digests))
    if not joined:
        return tuple(torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(_NUMBERS))
    rows = torch.frombuffer(joined, dtype=torch.int64).view(-1, _NUMBERS)
    return rows.t().contiguous().unbind()
