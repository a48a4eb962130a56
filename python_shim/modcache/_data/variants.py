# SPDX-License-Identifier: Apache-2.0
"""Chooses which of the k cached variants of a sample is returned."""

from __future__ import annotations

import hashlib
import mmap
import operator
from typing import Any

import torch


class Variants:
    """Chooses variants: in k consecutive epochs, each sample returns each of its k variants once.

    Their order is a function of (seed, key). ``set_epoch`` sets the epoch; until then the n-th turn
    of a place counts as epoch n. Shared memory holds epoch and turns, so that all workers see them,
    also persistent ones.
    """

    def __init__(self, owner: str, count: int, seed: int, places: int) -> None:
        """``owner``: the caller's name, for messages."""
        self._owner = owner
        self.count = checked_int(f"{owner}: variants", count, 1)
        self.seed = checked_int(f"{owner}: seed", seed, 0)
        # [0]: the epoch + 1, or 0 until it is set; then the turns of each place.
        self._shared: torch.Tensor | None = None
        if self.count > 1:
            self._shared = shared_zeros(1 + places)

    def set_epoch(self, epoch: int) -> None:
        number = checked_int(f"{self._owner}: epoch", epoch, 0)
        if self._shared is not None:
            self._shared[0] = number + 1

    def told_epoch(self) -> int:
        """Returns the epoch that was set last, or 0."""
        return 0 if self._shared is None else max(int(self._shared[0]) - 1, 0)

    def next_epoch(self, place: int) -> int:
        """Returns the epoch of the next turn of ``place``, and counts that turn."""
        shared = self._shared
        if shared is None:
            return 0
        told = int(shared[0])
        if told or not 0 <= place < shared.numel() - 1:
            return self.told_epoch()
        turn = int(shared[1 + place])
        shared[1 + place] = turn + 1
        return turn

    def number(self, key: str, epoch: int) -> int:
        """Returns the variant, 0 <= variant < k."""
        if self.count == 1:
            return 0
        digest = hashlib.blake2b(f"{self.seed}/{key}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") + epoch) % self.count

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy starts with the same epoch and turns, and then counts its own."""
        vars(self).update(state)
        if self._shared is not None:
            self._shared = _shared(self._shared)


def shared_zeros(count: int) -> torch.Tensor:
    """Returns int64 zeros in memory that worker processes share, also spawned ones."""
    return _shared(torch.zeros(count, dtype=torch.int64, device="cpu"))


def _shared(numbers: torch.Tensor) -> torch.Tensor:
    try:
        return numbers.share_memory_()  # type: ignore[no-untyped-call, no-any-return]
    except RuntimeError:  # there is no /dev/shm: forked workers still share this memory
        memory = mmap.mmap(-1, numbers.nbytes)
        return torch.frombuffer(memory, dtype=numbers.dtype).copy_(numbers)


def checked_int(name: str, value: object, least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int, but got {type(value).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, but got {number}")
    return number
