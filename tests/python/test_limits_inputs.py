# SPDX-License-Identifier: Apache-2.0
"""What of an input nobody compares, as docs/limits.md has it: each test is a sentence of it."""

from __future__ import annotations

import random
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from torch import nn


class Ones(nn.Module):
    def forward(self, first: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(first))


def seen(rows: torch.Tensor, edited: torch.Tensor, counted: Any) -> int:
    """Of how many rows the edit is seen."""
    keys = list(range(len(rows)))
    modcache.lookup_or_run(Ones(), rows, keys)
    counted()
    modcache.lookup_or_run(Ones(), edited, keys)
    return int(counted().get("key_conflicts", 0))


@pytest.mark.parametrize(
    ("dtype", "whole"), [(torch.float32, 1024), (torch.uint8, 8192), (torch.int64, 1024)], ids=str
)
@pytest.mark.parametrize("is_large", [False, True])
def test_of_what_lies_between_the_pieces_nothing_is_known(
    dtype: torch.dtype, whole: int, is_large: bool, counted: Any
) -> None:
    """Each row has one element changed, wherever there is one: all are seen, or few."""
    elements = whole + is_large
    rows = torch.randint(100, (elements,)).to(dtype).repeat(512, 1)
    edited = rows.clone()
    edited[range(512), torch.randperm(elements)[:512]] += 100
    found = seen(rows, edited, counted)
    assert (found < 200) if is_large else (found == 512)


SHARES = [
    (512, 1, 0.23),
    (512, 25, 0.02),
    (37_632, 1, 1.0),
    (37_632, 376, 0.86),
    (37_632, 3763, 0.02),
]


@pytest.mark.parametrize(("elements", "changed", "unseen"), SHARES)
def test_the_share_of_edits_that_is_not_seen(
    elements: int, changed: int, unseen: float, counted: Any
) -> None:
    rows = torch.randn(256, elements)
    edited = rows.clone()
    for row in edited:
        first = int(torch.randint(elements - changed + 1, ()))
        row[first : first + changed] = torch.randn(changed)
    assert 1 - seen(rows, edited, counted) / 256 == pytest.approx(unseen, abs=0.08)


def test_unrelated_inputs_are_told_apart(counted: Any) -> None:
    assert seen(torch.randn(256, 512), torch.randn(256, 512), counted) == 256


@pytest.mark.parametrize(("by", "status"), [(1.005, "hit"), (0.995, "hit"), (1.05, "miss")])
def test_an_image_that_is_a_little_brighter_is_the_same(by: float, status: str) -> None:
    image = torch.rand(3, 64, 64)
    modcache.lookup_or_run(Ones(), image, "k")
    assert modcache.explain(Ones(), image * by, "k").status == status


@pytest.mark.parametrize(
    ("dtype", "unseen"), [(torch.float32, {24, 25}), (torch.int64, set())], ids=str
)
def test_of_more_than_24_tensors_of_floats_the_first_24_are_compared(
    dtype: torch.dtype, unseen: set[int]
) -> None:
    given = [torch.arange(8).to(dtype) + 1 for _ in range(26)]
    modcache.lookup_or_run(Ones(), tuple(given), "k")
    found = {
        i
        for i in range(26)
        if modcache.explain(Ones(), (*given[:i], given[i] + 5, *given[i + 1 :]), "k").status
        == "hit"
    }
    assert found == unseen


@pytest.mark.parametrize(
    "x",
    [torch.zeros(3), torch.zeros(2, 2), torch.zeros(3).long()],
    ids=["floats", "another shape", "another dtype"],
)
def test_an_entry_that_store_made_has_neither_sample_nor_shape(x: torch.Tensor) -> None:
    torch.ops.cache.store("limits@4", "k", torch.full((3,), 7.0))
    assert modcache.explain(Ones(), x, "k", scope="limits@4").status == "hit"


def test_key_content_gives_each_input_a_key_of_its_own_whatever_the_edit(counted: Any) -> None:
    module = modcache.cached(nn.Linear(37_632, 1), key="content", freeze=True)
    x = torch.randn(1, 37_632)
    for place in range(0, 37_632, 5000):
        module(x)
        x[0, place] += 1e-3
    assert counted() == {"misses": 8, "stored": 8}


# --- Results that are never kept ------------------------------------------------------------------


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * random.random()


class NoiseOfNumPy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(np.random.rand())


@pytest.mark.parametrize("cls", [Noise, NoiseOfNumPy])
def test_random_numbers_of_other_generators_are_not_noticed(
    cls: type[nn.Module], counted: Any
) -> None:
    x = torch.ones(3)
    first, second = (modcache.lookup_or_run(cls(), x, "k") for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(cls()(x), cls()(x))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
