# SPDX-License-Identifier: Apache-2.0
"""Option `codec`: fewer bytes on disk, the same bits in every result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from growth import bytes_on_disk
from processes import ProcessRunner
from torch import nn
from value_strategies import exact, rows_of

KEYS = [f"row-{row}" for row in range(8)]
X = torch.arange(8.0)


@pytest.fixture(params=["k", KEYS], ids=["one key", "per row"])
def key(request: Any) -> Any:
    return request.param


class Gives(nn.Module):
    """Gives the rows of what it was made with that its input names."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> Any:
        return rows_of(self.value, [int(number) for number in x])


class Refuses(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        raise AssertionError("there was a miss")


def features(seed: int = 0) -> torch.Tensor:
    """Like what encoders give: smooth numbers, of which exponents repeat and mantissas do not."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 20_000, generator=generator).relu()


def bytes_that_it_takes(value: Any, key: Any, scope: str) -> int:
    before = bytes_on_disk()
    modcache.lookup_or_run(Gives(value), X, key, scope=scope)
    return bytes_on_disk() - before


COMPRESSIBLE = {
    "features": features,
    "zeros": lambda: torch.zeros(8, 20_000),
    "small integers": lambda: torch.randint(0, 100, (8, 20_000)),
    "bfloat16": lambda: features().bfloat16(),
    "complex": lambda: torch.complex(features(), features(1)),
    "structure": lambda: {"a": features(), "b": [torch.ones(8, 100), None]},
}


@pytest.mark.parametrize("name", COMPRESSIBLE)
def test_what_has_patterns_takes_fewer_bytes(name: str, key: Any, reopen: Any) -> None:
    value = COMPRESSIBLE[name]()
    modcache.lookup_or_run(Gives(torch.ones(8)), X, key, scope="the database's own pages")
    plain = bytes_that_it_takes(value, key, "plain")
    modcache.configure(codec="zstd")
    encoded = bytes_that_it_takes(value, key, "encoded")
    assert encoded < 0.8 * plain
    for _ in range(2):
        for scope in ("plain", "encoded"):
            assert exact(modcache.lookup_or_run(Refuses(), X, key, scope=scope)) == exact(value)
        reopen()


def test_what_has_none_takes_no_more(key: Any, reopen: Any) -> None:
    noise = torch.randint(0, 256, (8, 100_000), dtype=torch.uint8)
    modcache.lookup_or_run(Gives(torch.ones(8)), X, key, scope="the database's own pages")
    modcache.configure(codec="zstd")
    assert bytes_that_it_takes(noise, key, "s") <= noise.nbytes + 60_000  # pages of the database
    reopen()
    assert exact(modcache.lookup_or_run(Refuses(), X, key, scope="s")) == exact(noise)


def read_all(keys: list[Any], scopes: list[str]) -> tuple[list[Any], dict[str, int]]:
    results = [
        exact(modcache.lookup_or_run(Refuses(), X, key, scope=scope))
        for key in keys
        for scope in scopes
    ]
    return results, modcache.stats()


@pytest.mark.parametrize("now", ["none", "zstd"])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_every_entry_says_how_it_is_stored(now: str, io: str, processes: ProcessRunner) -> None:
    for codec in ("none", "zstd", "none"):
        modcache.configure(codec=codec)
        modcache.lookup_or_run(Gives(features()), X, "k", scope=codec)
        modcache.lookup_or_run(Gives(features()), X, KEYS, scope=codec)
    modcache.flush()
    environment = {"MODCACHE_CODEC": now, "MODCACHE_IO": io}
    asked = processes.run(read_all, ["k", KEYS], ["none", "zstd"], env=environment)
    results, stats = asked.value
    assert results == [exact(features())] * 4
    assert (stats["hits_disk"], stats["errors"], stats["corrupt"]) == (2 + 16, 0, 0)


def test_rows_stored_with_different_codecs_make_one_batch(reopen: Any) -> None:
    value = features()
    modcache.lookup_or_run(Gives(value), X, [f"proof/{key}" for key in KEYS], scope="s")
    for row, key in enumerate(KEYS):
        modcache.configure(codec="zstd" if row % 2 else "none")
        modcache.lookup_or_run(Gives(value), X[row : row + 1], [key], scope="s")
    for _ in range(2):
        assert exact(modcache.lookup_or_run(Refuses(), X, KEYS, scope="s")) == exact(value)
        reopen()


# --- damage -------------------------------------------------------------------------------


def ask(names: list[str]) -> tuple[list[bool], dict[str, int]]:
    """Whether each result is right, whatever ran: one key each, and all as the rows of a batch."""
    right = []
    for number, name in enumerate(names):
        result = modcache.lookup_or_run(Gives(features(number)), X, name, scope="whole")
        right.append(torch.equal(result, features(number)))
    result = modcache.lookup_or_run(Gives(features()), X, KEYS, scope="rows")
    right.append(torch.equal(result, features()))
    modcache.flush()
    return right, modcache.stats()


def segments_of(directory: Path) -> list[Path]:
    return sorted((directory / "segments").iterdir())


NAMES = ["a", "b", "c"]
ALL = len(NAMES) + len(KEYS)


def flip(directory: Path, place: float) -> None:
    """One bit, at this share of the bytes that all segments have together."""
    segments = segments_of(directory)
    at = int(place * sum(segment.stat().st_size for segment in segments))
    for segment in segments:
        size_bytes = segment.stat().st_size
        if at < size_bytes:
            data = bytearray(segment.read_bytes())
            data[at] ^= 1 << (at % 8)
            segment.write_bytes(bytes(data))
            return
        at -= size_bytes


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("place", [0.05, 0.21, 0.4, 0.55, 0.7, 0.83, 0.96])
def test_a_flipped_bit_is_a_counted_miss_and_never_a_wrong_value(
    place: float, io: str, cache_dir: Path, processes: ProcessRunner
) -> None:
    right, stats = processes.run(ask, NAMES, env={"MODCACHE_CODEC": "zstd"}).value
    assert all(right)
    assert stats["stored"] == ALL
    flip(cache_dir, place)
    outcome = processes.run(ask, NAMES, env={"MODCACHE_IO": io})
    right, stats = outcome.value
    assert all(right)
    assert (stats["misses"], stats["corrupt"], stats["hits_disk"]) == (1, 1, ALL - 1)
    assert len(outcome.log_lines) == 1, outcome.stderr
    # What was run again was stored again, as the settings are now.
    right, stats = processes.run(ask, NAMES).value
    assert all(right)
    assert (stats["hits_disk"], stats["corrupt"]) == (ALL, 0)
