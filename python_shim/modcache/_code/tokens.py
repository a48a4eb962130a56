# SPDX-License-Identifier: Apache-2.0
"""Atoms: immutable plain values, and the text that stands for them in digests.

``1``, ``1.0``, ``True`` and ``"1"`` differ, and so do ``0.0`` and ``-0.0``. NaNs differ by their
bits. The text is the same in every process.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import torch

# An object of exactly one of these types never changes, and holds no other object.
ATOMS: frozenset[type] = frozenset(
    {
        int, float, bool, str, bytes, complex, range,
        type(None), type(Ellipsis), type(NotImplemented),
        torch.dtype, torch.device, torch.layout, torch.memory_format,
    }
)  # fmt: skip


def tokens_of_atom(atom: object) -> tuple[str | bytes, ...]:
    """REQUIRES: ``type(atom) in ATOMS``."""
    if isinstance(atom, float):
        return ("float", struct.pack("<d", atom))
    if isinstance(atom, complex):
        return ("complex", struct.pack("<dd", atom.real, atom.imag))
    if isinstance(atom, bytes):
        return ("bytes", atom)
    if isinstance(atom, str):
        return ("str", atom)
    if isinstance(atom, torch.device):  # a module computes the same on every device
        return ("device",)
    return (type(atom).__name__, repr(atom))


class NumberingHasher:
    """Hashes tokens, and numbers objects in the order of their first mention."""

    def __init__(self) -> None:
        self._hasher = hashlib.blake2b(digest_size=16)
        self._indices: dict[int, int] = {}  # by id
        self._alive: list[object] = []  # an id means something only while its object lives

    def feed(self, *tokens: str | bytes) -> None:
        feed(self._hasher, tokens)

    def index_of(self, value: object) -> str:
        """Returns the number of an object, which tells objects of one name apart."""
        count = len(self._indices)
        if (index := self._indices.setdefault(id(value), count)) == count:
            self._alive.append(value)
        return str(index)

    def digest(self) -> bytes:
        return self._hasher.digest()


def feed(hasher: hashlib.blake2b, tokens: Iterable[str | bytes]) -> None:
    """Adds tokens to a hash, each with its size, so that different tokens are different bytes."""
    for token in tokens:
        data = as_bytes(token)
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)


def as_bytes(token: str | bytes) -> bytes:
    return token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
