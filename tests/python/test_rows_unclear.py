# SPDX-License-Identifier: Apache-2.0
"""Inputs of which nothing tells whether a part goes row by row: a list, a tensor [1, B, ...]."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from torch import nn

IMAGES = torch.arange(3.0).reshape(3, 1)
KEYS = ["old/0", "old/1", "new/2"]


class Pairs(nn.Module):
    def forward(self, images: torch.Tensor, texts: list[str]) -> torch.Tensor:
        return torch.stack([images[i].mean() + len(texts[i]) for i in range(len(texts))])


class Table(nn.Module):
    """Has one entry of its table for each row."""

    def forward(self, images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return images + table[0, : len(images)]


class Classes(nn.Module):
    """Has three classes for all rows."""

    def forward(self, images: torch.Tensor, classes: list[str]) -> torch.Tensor:
        return images * torch.tensor([float(len(name)) for name in classes])


CALLS: dict[str, tuple[Any, Any]] = {
    "a list of texts": (Pairs, ["a", "bb", "ccc"]),
    "a list of numbers in a dict": (
        lambda: Applied(lambda x, more: x + torch.tensor(more["ages"])[:, None]),
        {"ages": [4, 5, 6]},
    ),
    "a tuple of texts": (Pairs, ("a", "bb", "ccc")),
    "a tensor": (Table, torch.arange(6.0).reshape(1, 3, 2)),
    "texts for all": (Classes, ["a", "bb", "ccc"]),
}


class Applied(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@pytest.mark.parametrize("name", CALLS)
def test_all_rows_run_where_one_is_missing(name: str) -> None:
    make, more = CALLS[name]
    module = make()
    expected = module(IMAGES, more)
    for _ in range(2):
        found = modcache.lookup_or_run(module, (IMAGES, more), KEYS, scope="s")
        assert torch.equal(found, expected)
    assert modcache.stats()["hits_memory"] == 3
    modcache.clear(prefix="new/")
    assert torch.equal(modcache.lookup_or_run(module, (IMAGES, more), KEYS, scope="s"), expected)
    fresh = modcache.lookup_or_run(module, (IMAGES, more), ["p", "q", "r"], scope="s")
    assert torch.equal(fresh, expected)


@pytest.mark.parametrize("name", ["a list of texts", "texts for all"])
def test_in_torchscript_likewise(name: str) -> None:
    make, more = CALLS[name]
    module = torch.jit.script(make())
    for keys in (KEYS, [*KEYS[:2], "another"]):
        found = modcache.lookup_or_run(module, (IMAGES, more), keys)
        assert torch.equal(found, module(IMAGES, more))
        operator = torch.ops.cache.lookup_or_run(module._c, (IMAGES, more), [*keys[1:], "more"])
        assert torch.equal(operator, module(IMAGES, more))


def test_a_list_of_another_size_belongs_to_every_row() -> None:
    module = Classes()
    classes = ["a", "bb"]
    modcache.lookup_or_run(module, (IMAGES, classes), KEYS, scope="s")
    found = modcache.lookup_or_run(module, (IMAGES, classes), [*KEYS[:2], "other"], scope="s")
    assert modcache.stats()["misses"] == 4
    assert torch.equal(found, IMAGES * torch.tensor([1.0, 2.0]))


def test_beside_a_mask_it_runs_uncached_and_says_so(capfd: Any) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, names: list[str]) -> torch.Tensor:
            return x * mask + torch.tensor([len(name) for name in names])[:, None]

    x, mask = torch.ones(3, 4), torch.ones(3, 4)
    mask[0, 2:] = 0
    given = (x, mask, ["a", "bb", "ccc"])
    for _ in range(2):
        found = modcache.lookup_or_run(Named(), given, KEYS, mask=1)
        assert torch.equal(found, Named()(*given))
    modcache.flush()
    assert "go row by row" in capfd.readouterr().err
    assert modcache.stats()["stored"] == 0
