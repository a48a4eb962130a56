# SPDX-License-Identifier: Apache-2.0
"""Digests that stand for data in what the library gets of an input."""

from __future__ import annotations

from collections.abc import Iterable

import torch

DIGEST_BYTES = 32


def view_of_digest(digest: bytes) -> torch.Tensor:
    """One digest as the library gets it: uint8 [32]."""
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def view_of_digests(digests: Iterable[bytes]) -> tuple[torch.Tensor, ...]:
    """One digest for each row as the library gets them: four tensors, int64 [B].

    They have no dimension after the rows, so that padded rows beside them never get a digest cut.
    """
    joined = bytearray(b"".join(digests))
    if not joined:
        return tuple(torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(4))
    numbers = torch.frombuffer(joined, dtype=torch.int64).view(-1, DIGEST_BYTES // 8)
    return numbers.t().contiguous().unbind()
