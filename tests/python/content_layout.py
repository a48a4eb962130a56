# SPDX-License-Identifier: Apache-2.0
"""What content keys are made of (csrc/FORMAT.md, "Content keys"), written down a second time."""

from __future__ import annotations

import hashlib
import itertools
import struct
from typing import Any

import torch

RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def layout(value: Any) -> bytes:
    """The bytes of a value."""

    def sized(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    def parts(tag: bytes, count: int, values: Any) -> bytes:
        return tag + struct.pack("<Q", count) + b"".join(layout(part) for part in values)

    if isinstance(value, torch.Tensor):
        sizes = struct.pack(f"<Q{value.dim()}Q", value.dim(), *value.shape)
        raw = value.detach().resolve_conj().resolve_neg().view(RAW[value.element_size()])
        data = raw.cpu().contiguous().numpy().tobytes()
        return b"t" + sized(str(value.dtype).removeprefix("torch.").encode()) + sizes + sized(data)
    if isinstance(value, tuple):
        return parts(b"(", len(value), value)
    if isinstance(value, list):
        return parts(b"[", len(value), value)
    if isinstance(value, dict):
        return parts(b"{", len(value), itertools.chain.from_iterable(value.items()))
    kinds = {
        type(None): lambda: b"n",
        bool: lambda: b"b" + bytes([value]),
        int: lambda: b"i" + struct.pack("<q", value),
        float: lambda: b"d" + struct.pack("<d", value),
        complex: lambda: b"c" + struct.pack("<dd", value.real, value.imag),
        str: lambda: b"s" + sized(value.encode()),
        torch.device: lambda: b"v" + sized(str(value).encode()),
    }
    return kinds[type(value)]()


def expected_key(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    hashed = b"mcCT" + struct.pack("<I", 1) + layout(value)
    return hashlib.blake2b(hashed, digest_size=32).hexdigest()
