# SPDX-License-Identifier: Apache-2.0
"""Atoms: immutable plain values, and the text by which a digest tells them apart.

``1``, ``1.0``, ``True`` and ``"1"`` differ, so do ``0.0`` and ``-0.0``; every NaN is told by its
bits. The text is the same in every process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hashlib import blake2b

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
    if isinstance(atom, torch.device):  # where a module runs is not what it computes
        return ("device",)
    return (type(atom).__name__, repr(atom))


def feed(hasher: blake2b, tokens: Iterable[str | bytes]) -> None:
    """Adds tokens to a hash, each with its size: other tokens never are the same bytes."""
    for token in tokens:
        data = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
