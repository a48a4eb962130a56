# SPDX-License-Identifier: Apache-2.0
"""Records whose checksums are right and whose content is hostile never reach the model.

HOSTILE_SEEDS=1000 tries more random ones.
"""

from __future__ import annotations

import os
import struct
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import numpy
import pytest
import torch
from forged_records import Record, forge, forge_at_random
from processes import ProcessRunner
from torch import nn

Pair = namedtuple("Pair", ["first", "second"])
X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


class Structured(nn.Module):
    """A dict with text, and a named tuple in it."""

    def forward(self, x: torch.Tensor) -> Any:
        return {"tensor": x * 2, "text": "text", "pair": Pair(x + 1, [1, None, 2.5])}


class Twice(nn.Module):
    """A tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Samples(torch.utils.data.Dataset[Any]):
    """What datasets hold besides tensors."""

    def __getitem__(self, index: int) -> Any:
        return {"array": numpy.arange(4) + index, "name": "text", "bytes": b"bytes", "x": X[index]}

    def __len__(self) -> int:
        return 3


def plainly(value: Any) -> Any:
    """The value as something that can be compared, and sent to another process."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, numpy.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plainly(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plainly(item) for item in value]
    return value


def call_single() -> Any:
    """One key, a structured value."""
    return modcache.lookup_or_run(Structured(), X, "key", scope="structured")


def call_scripted() -> Any:
    """One key, a tensor, TorchScript."""
    script = torch.jit.script(Twice())
    return torch.ops.cache.lookup_or_run(script, X, "key", scope="scripted")


def call_rows() -> Any:
    """One key for each row."""
    return modcache.lookup_or_run(Twice(), X, KEYS, scope="rows")


def call_scripted_rows() -> Any:
    """One key for each row, TorchScript."""
    script = torch.jit.script(Twice())
    return torch.ops.cache.lookup_or_run(script, X, KEYS, scope="rows")


def call_structured_rows() -> Any:
    """One key for each row, a structured value."""
    return modcache.lookup_or_run(Structured(), X, KEYS, scope="structured rows")


def call_samples() -> Any:
    """Samples of a dataset, together."""
    return modcache.CachedDataset(Samples(), scope="samples").__getitems__([0, 1, 2])


CALLS = (
    call_single, call_scripted, call_rows, call_scripted_rows, call_structured_rows, call_samples
)  # fmt: skip


def in_a_process(call: Callable[[], Any], memory: str = "0") -> tuple[Any, dict[str, int]]:
    """What the call gives in a process of its own, and its counters."""
    modcache.configure(memory=memory, log="off")
    value = plainly(call())
    modcache.flush()
    return value, modcache.stats()


def without_raising(call: Callable[[], Any], memory: str) -> None:
    """Rows of other sizes or plain values are as a module may give them: an error of their own."""
    try:
        in_a_process(call, memory)
    except (ValueError, RuntimeError) as error:
        if "do not fit into one" not in str(error):
            raise


def only(key: str, change: Callable[[bytes, int], bytes]) -> Callable[[Record], None]:
    """Changes the header of the entry with this key alone."""

    def changed(record: Record) -> None:
        if record.key == key:
            record.header = change(record.header, record.value_begin)

    return changed


def replaced(old: bytes, new: bytes) -> Callable[[Record], None]:
    """Changes a text of every header that has it."""

    def changed(record: Record) -> None:
        record.header = record.header.replace(old, new, 1)

    return changed


def with_dtypes(dtype: int, stored: int) -> Callable[[bytes, int], bytes]:
    """A lone tensor's: version, codec, 't', dtype, stored dtype."""
    return lambda header, at: header[: at + 3] + bytes([dtype, stored]) + header[at + 5 :]


def with_sizes(*sizes: int) -> Callable[[bytes, int], bytes]:
    """Of a lone tensor with as many dimensions."""
    return lambda header, at: header[: at + 7] + struct.pack(f"<{len(sizes)}q", *sizes)


def with_own_size(size: int) -> Callable[[Record], None]:
    """The own part, which holds the sample of the input, says another size of itself."""

    def changed(record: Record) -> None:
        assert record.own_size > 0
        record.header = struct.pack("<I", 2**31 + size) + record.header[4:]

    return changed


FLOAT, LONG, BITS8, QINT8 = 6, 4, 21, 12
FORGERIES = {
    "text that is no UTF-8": (call_single, replaced(b"text", b"\xfftex")),
    "a dict's key that is no UTF-8": (call_single, replaced(b"tensor", b"ten\xe9or")),
    "a class that is no UTF-8": (call_single, replaced(b"Pair", b"\xc3air")),
    "a field that is no UTF-8": (call_single, replaced(b"first", b"\xed\xa0\x80st")),
    "text of a sample that is no UTF-8": (call_samples, replaced(b"text", b"\xfftex")),
    "a dtype that is stored as no other": (call_scripted, only("key", with_dtypes(LONG, FLOAT))),
    "a dtype that cannot be copied": (call_scripted, only("key", with_dtypes(BITS8, BITS8))),
    "a quantized dtype": (call_scripted, only("key", with_dtypes(QINT8, QINT8))),
    "a dtype that torch does not have": (call_scripted, only("key", with_dtypes(200, 200))),
    "sizes that overflow": (call_scripted, only("key", with_sizes(2**62, 2**62))),
    "sizes of nothing that overflow": (call_scripted, only("key", with_sizes(0, 2**62))),
    "another size": (call_scripted, only("key", with_sizes(3, 5))),
    "a row of another dtype": (call_rows, only("b", with_dtypes(3, 3))),
    "a row of another dtype, scripted": (call_scripted_rows, only("b", with_dtypes(3, 3))),
    "a row's text that is no UTF-8": (call_structured_rows, replaced(b"text", b"\xfftex")),
    "an own part that is larger than any": (call_rows, with_own_size(60)),
    "an own part that reaches into the rest": (call_scripted, with_own_size(59)),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_hostile_content_is_corrupt_counted_and_the_module_is_run(
    forgery: str, cache_dir: Path, processes: ProcessRunner
) -> None:
    call, change = FORGERIES[forgery]
    right, first = processes.run(in_a_process, call).value
    assert first["stored"] > 0
    assert forge(cache_dir, change) > 0
    value, stats = processes.run(in_a_process, call).value
    assert value == right
    assert stats["corrupt"] > 0
    # It was computed anew, and replaced.
    value, stats = processes.run(in_a_process, call).value
    assert (value, stats["corrupt"], stats["misses"]) == (right, 0, 0)


def test_a_sample_that_ends_too_soon_is_that_of_another_input(
    cache_dir: Path, processes: ProcessRunner
) -> None:
    right, _ = processes.run(in_a_process, call_single).value
    assert forge(cache_dir, with_own_size(1)) > 0
    value, stats = processes.run(in_a_process, call_single).value
    assert (value, stats["key_conflicts"], stats["stored"]) == (right, 1, 1)
    value, stats = processes.run(in_a_process, call_single).value
    assert (value, stats["key_conflicts"], stats["misses"]) == (right, 0, 0)


def test_rows_of_which_most_are_of_another_kind_than_the_module_gives(
    cache_dir: Path, processes: ProcessRunner
) -> None:
    right, _ = processes.run(in_a_process, call_rows).value

    def most(record: Record) -> None:
        if record.key in ("a", "b"):
            record.header = with_dtypes(3, 3)(record.header, record.value_begin)

    assert forge(cache_dir, most) == 3
    value, stats = processes.run(in_a_process, call_rows).value
    assert value == right
    assert stats["corrupt"] > 0
    value, stats = processes.run(in_a_process, call_rows).value
    assert (value, stats["corrupt"]) == (right, 0)


@pytest.mark.parametrize("memory", ["0", "1GB"])
@pytest.mark.parametrize("call", CALLS)
def test_random_value_headers_raise_nothing(
    call: Callable[[], Any], memory: str, cache_dir: Path, processes: ProcessRunner
) -> None:
    processes.run(in_a_process, call)
    for seed in range(int(os.environ.get("HOSTILE_SEEDS", "6"))):
        forge_at_random(cache_dir, seed)
        processes.run(without_raising, call, memory)
