# SPDX-License-Identifier: Apache-2.0
"""Changes records of a directory as somebody would who knows their format: checksums are right."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from pathlib import Path

_HEADER_BYTES = 64
_FIXED_BYTES = 80
_ENTRY = 1
# csrc/store/entry/own_part.h
_OWN_PART = 2**31
_MOST_OWN_BYTES = 59


class Record:
    """An entry as bytes; what is changed in it keeps its size."""

    def __init__(self, segment: bytearray, offset: int) -> None:
        self._segment = segment
        self._offset = offset
        key_size, self._header_size = struct.unpack_from("<II", segment, offset + 72)
        (self._payload_size,) = struct.unpack_from("<Q", segment, offset + 56)
        self._header_offset = offset + _FIXED_BYTES + key_size
        self.key = bytes(segment[offset + _FIXED_BYTES : self._header_offset]).decode()
        self.is_entry = segment[offset + 10] == _ENTRY
        padded = -(-(self._header_offset + self._header_size - offset) // 64) * 64
        self._payload_offset = offset + padded
        self.end = self._payload_offset + -(-self._payload_size // 64) * 64

    @property
    def header(self) -> bytes:
        """The own part, where there is one, the signature with its size, and the value header."""
        return bytes(self._segment[self._header_offset :][: self._header_size])

    @header.setter
    def header(self, header: bytes) -> None:
        assert len(header) == self._header_size
        start = self._header_offset
        self._segment[start : start + self._header_size] = header

    @property
    def own_size(self) -> int:
        """How many bytes the own part holds: the sample of the input. 0: there is none."""
        size = self._number_at(0) - _OWN_PART
        return size if 0 <= size <= _MOST_OWN_BYTES else 0

    @property
    def value_begin(self) -> int:
        """Where the value header begins in ``header``."""
        signature_begin = 4 + self.own_size if self.own_size else 0
        return signature_begin + 4 + self._number_at(signature_begin)

    def _number_at(self, offset: int) -> int:
        """Of the header: of one that was forged before, perhaps a shorter number."""
        return int.from_bytes(self.header[offset : offset + 4], "little")

    def seal(self, salt: int) -> None:
        """Computes the checksums anew."""
        payload = bytes(self._segment[self._payload_offset :][: self._payload_size])
        struct.pack_into("<Q", self._segment, self._offset + 64, _xxh3_64(payload, 0))
        head = bytes(self._segment[self._offset + 8 : self._header_offset + self._header_size])
        struct.pack_into("<Q", self._segment, self._offset, _xxh3_64(head, salt))


def forge(directory: Path, change: Callable[[Record], None]) -> int:
    """Calls ``change`` with each entry of the directory. Returns how many there are."""
    entries = 0
    for path in (directory / "segments").glob("*.seg"):
        segment = bytearray(path.read_bytes())
        (salt,) = struct.unpack_from("<Q", segment, 16)
        offset = _HEADER_BYTES
        while offset + _FIXED_BYTES <= len(segment):
            record = Record(segment, offset)
            if record.is_entry:
                change(record)
                record.seal(salt)
                entries += 1
            offset = record.end
        path.write_bytes(segment)
    return entries


def forge_at_random(directory: Path, seed: int) -> None:
    """One to three bytes of every header become others: of most in the value header."""
    numbers = random.Random(seed)
    odd = (0, 1, 2, 5, 7, 11, 15, 0x28, 0x5B, 0x6E, 0x73, 0x74, 0x7B, 0x7F, 0x80, 0xC3, 0xFF)

    def change(record: Record) -> None:
        header = bytearray(record.header)
        begin = 0 if numbers.random() < 0.25 else min(record.value_begin, len(header) - 1)
        for _ in range(numbers.randint(1, 3)):
            at = numbers.randrange(begin, len(header))
            is_odd = numbers.random() < 0.7
            header[at] = numbers.choice(odd) if is_odd else numbers.randrange(256)
        record.header = bytes(header)

    forge(directory, change)


def _xxh3_64(data: bytes, seed: int) -> int:
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    return int(function(data, len(data), seed))
