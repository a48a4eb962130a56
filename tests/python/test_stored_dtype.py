# SPDX-License-Identifier: Apache-2.0
"""Option `dtype`: floats are stored in half the bytes and given back in the module's own dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from growth import bytes_on_disk
from torch import nn
from value_strategies import exact

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
WIDE = [torch.float32, torch.float64]
KEYS = [f"row-{row}" for row in range(6)]


@pytest.fixture(params=HALVES)
def half(request: Any) -> torch.dtype:
    modcache.configure(dtype=request.param)
    return HALVES[request.param]


@pytest.fixture(params=["k", KEYS], ids=["one key", "per row"])
def key(request: Any) -> Any:
    return request.param


class Gives(nn.Module):
    """Gives the rows of what it was made with that its input names."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> Any:
        rows = [int(number) for number in x]
        return self.value if rows == list(range(len(self.value))) else self.value[rows]


X = torch.arange(6.0)


def asked(value: Any, key: Any, x: torch.Tensor = X) -> Any:
    return modcache.lookup_or_run(Gives(value), x, key, scope="s")


def rounded(value: torch.Tensor, half: torch.dtype) -> torch.Tensor:
    return value.to(half).to(value.dtype)


def check_in_all_tiers(value: Any, kept: Any, key: Any, reopen: Callable[[], None]) -> None:
    """The run itself gives ``value``, every hit gives ``kept``."""
    assert exact(asked(value, key)) == exact(value)
    for tier in ("hits_memory", "hits_disk"):
        before = modcache.stats()[tier]
        assert exact(asked(value, key)) == exact(kept), tier
        assert modcache.stats()[tier] > before
        reopen()


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_floats_come_back_in_their_dtype_rounded_once(
    dtype: torch.dtype, half: torch.dtype, codec: str, key: Any, reopen: Any
) -> None:
    value = torch.randn(6, 33, dtype=dtype) * torch.logspace(-9, 4, 33, dtype=dtype)
    check_in_all_tiers(value, rounded(value, half), key, reopen)


def test_special_floats_are_kept(half: torch.dtype, codec: str, key: Any, reopen: Any) -> None:
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 1.0]
    value = torch.tensor([special] * 6)
    value[3, 3] = 0.0
    asked(value, key)
    for _ in range(2):
        result = asked(value, key)
        assert torch.equal(result.isnan(), value.isnan())
        expected = rounded(value, half)
        assert torch.equal(result.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(result.signbit(), expected.signbit())
        reopen()


OTHERS = [
    torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int8, torch.int32,
    torch.int64, torch.uint16, torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_other_dtypes_are_untouched(
    dtype: torch.dtype, half: torch.dtype, codec: str, key: Any, reopen: Any
) -> None:
    value = torch.randint(0, 2, (6, 8 * dtype.itemsize), dtype=torch.uint8)
    value = value.bool() if dtype == torch.bool else (value * 91).view(dtype)
    check_in_all_tiers(value, value, key, reopen)


TOO_LARGE = {  # what the half would make infinite
    (torch.float32, "float16"): 65520.0,
    (torch.float64, "float16"): -1e5,
    (torch.float32, "bfloat16"): torch.finfo(torch.float32).max,
    (torch.float64, "bfloat16"): 1e300,
}


@pytest.mark.parametrize(("dtype", "name"), TOO_LARGE, ids=str)
def test_what_would_become_infinite_is_stored_in_full(
    dtype: torch.dtype, name: str, codec: str, key: Any, reopen: Any
) -> None:
    modcache.configure(dtype=name)
    value = torch.randn(6, 5, dtype=dtype)
    value[2, 1] = TOO_LARGE[dtype, name]
    value[2, 2] = float("inf")  # which is no reason
    asked(value, key)
    for _ in range(2):
        result = asked(value, key)
        assert torch.equal(result[2], value[2])
        assert not torch.equal(result.isinf(), torch.zeros_like(result).bool())
        assert torch.equal(result.isinf(), value.isinf())
        torch.testing.assert_close(result, value, rtol=1 / 128, atol=1e-7)
        reopen()


def test_the_largest_half_is_no_reason_to_store_in_full(key: Any, reopen: Any) -> None:
    modcache.configure(dtype="float16")
    value = torch.full((6, 4), 65519.0)
    check_in_all_tiers(value, torch.full((6, 4), 65504.0), key, reopen)


class Structure(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        wide = x.reshape(-1, 1) / 3
        return {"float": wide, "double": wide.double(), "int": x.long(), "plain": 1 / 3}


def test_every_float_of_a_structure_is_rounded_but_plain_numbers(
    half: torch.dtype, key: Any, reopen: Any
) -> None:
    value = Structure()(X)
    modcache.lookup_or_run(Structure(), X, key, scope="s")
    for _ in range(2):
        result = modcache.lookup_or_run(Structure(), X, key, scope="s")
        for name in ("float", "double"):
            assert exact(result[name]) == exact(rounded(value[name], half))
        assert exact(result["int"]) == exact(value["int"])
        assert result["plain"] == 1 / 3
        reopen()


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_half_the_bytes_are_stored(dtype: torch.dtype, half: torch.dtype, key: Any) -> None:
    asked(torch.zeros(6, 1), key)
    before = bytes_on_disk()
    value = torch.randn(6, 50_000, dtype=dtype)
    modcache.lookup_or_run(Gives(value), X, key, scope="another")
    size_bytes = value.numel() * half.itemsize
    assert size_bytes <= bytes_on_disk() - before <= 1.1 * size_bytes + 60_000
    assert size_bytes <= modcache.stats()["bytes_memory"] <= 1.1 * size_bytes + 20_000


SETTINGS = [
    {"dtype": dtype, "codec": codec}
    for dtype in ("keep", "float16", "bfloat16")
    for codec in ("none", "zstd")
]


def kept_as(value: torch.Tensor, setting: dict[str, str]) -> torch.Tensor:
    half = HALVES.get(setting["dtype"])
    return value if half is None else rounded(value, half)


def test_entries_of_all_settings_live_side_by_side(reopen: Any) -> None:
    values = [torch.randn(6, 64) for _ in SETTINGS]
    for number, setting in enumerate(SETTINGS):
        modcache.configure(**setting)
        asked(values[number], str(number))
    for now in SETTINGS:
        modcache.configure(**now)
        for _ in range(2):
            for number, setting in enumerate(SETTINGS):
                expected = kept_as(values[number], setting)
                assert exact(asked(values[number], str(number))) == exact(expected)
            reopen()
    assert modcache.stats()["misses"] == len(SETTINGS)


def test_so_do_the_rows_of_one_batch(counted: Any, reopen: Any) -> None:
    value = torch.randn(6, 64)
    value[5, 0] = 1e6  # in full also where dtype=float16
    asked(value, [f"proof/{key}" for key in KEYS])
    for row, setting in enumerate(SETTINGS[:5]):
        modcache.configure(**setting)
        asked(value, KEYS[row : row + 1], X[row : row + 1])
    modcache.configure(dtype="float16", codec="zstd")
    counted()
    expected = torch.stack([kept_as(value[row], SETTINGS[row]) for row in range(5)] + [value[5]])
    assert exact(asked(value, KEYS)) == exact(expected)
    assert counted() == {"hits_memory": 5, "misses": 1, "stored": 1}
    for tier in ("hits_memory", "hits_disk"):
        order = [5, 0, 3, 2, 1, 4]
        result = asked(value, [KEYS[row] for row in order], X[order])
        assert exact(result) == exact(expected[order])
        assert counted() == {tier: len(order)}
        reopen()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e4])
def test_verify_accepts_the_rounding_and_nothing_beyond(
    scale: float, half: torch.dtype, codec: str, key: Any, reopen: Any
) -> None:
    value = (torch.rand(6, 500) * 2 - 1) * scale
    value[:, 0], value[:, 7] = scale, 0
    asked(value, key)
    rows = 1 if key == "k" else 6
    numbers = torch.finfo(half)
    largest = float(rounded(value[0, 0], half))
    rounding = largest * numbers.eps / 2 + numbers.smallest_normal * numbers.eps / 2
    for _ in range(2):
        with modcache.mode("verify"):
            assert exact(asked(value, key)) == exact(value), "the fresh result"
            assert modcache.stats()["verify_differences"] == 0
            other = value.clone()
            other[:, 7] = 0.9 * (rounding + 1e-4 * largest)
            asked(other, key)
            assert modcache.stats()["verify_differences"] == 0
            other[:, 7] = 1.01 * (rounding + 1e-4 * largest)
            asked(other, key)
        assert modcache.stats()["verify_differences"] == rows
        modcache.reset_stats()
        reopen()


def test_verify_accepts_what_the_rounding_made_zero() -> None:
    modcache.configure(dtype="bfloat16")
    value = torch.full((6, 4), 1e-50, dtype=torch.float64)
    asked(value, "k")
    assert torch.equal(asked(value, "k"), torch.zeros_like(value))
    with modcache.mode("verify"):
        asked(value, "k")
    assert modcache.stats()["verify_differences"] == 0
