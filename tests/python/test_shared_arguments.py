# SPDX-License-Identifier: Apache-2.0
"""Arguments that are the same for every row of a batch, such as ``position_ids`` [1, L]."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from models import Python

X = torch.arange(12.0).reshape(3, 4)
POSITIONS = torch.arange(4.0).unsqueeze(0)
KEYS = ["a", "b", "c"]
ADDS = Python(lambda x, positions: x + positions)


def test_a_first_size_of_one_beside_rows_belongs_to_every_row(counted: Any) -> None:
    modcache.lookup_or_run(ADDS, (X[:2], POSITIONS), KEYS[:2], scope="s")
    assert counted() == {"misses": 2, "stored": 2}
    for _ in range(2):
        found = modcache.lookup_or_run(ADDS, (X, POSITIONS), KEYS, scope="s")
        assert torch.equal(found, X + POSITIONS)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 5}


def test_its_values_are_part_of_the_address(counted: Any) -> None:
    for _ in range(2):
        for positions in (POSITIONS, POSITIONS + 1, POSITIONS.to(torch.float64)):
            found = modcache.lookup_or_run(ADDS, (X, positions), KEYS, scope="s")
            assert torch.equal(found, X + positions)
    assert counted() == {"misses": 9, "stored": 9, "hits_memory": 9}


def test_a_batch_of_one_row_has_an_address_of_its_own(counted: Any) -> None:
    for _ in range(2):
        modcache.lookup_or_run(ADDS, (X, POSITIONS), KEYS, scope="s")
        for row in range(3):
            one = (X[row : row + 1], POSITIONS + row)
            found = modcache.lookup_or_run(ADDS, one, KEYS[row : row + 1], scope="s")
            assert torch.equal(found, one[0] + one[1])
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 6}


def test_arrays_and_what_containers_hold_may_be_shared(counted: Any) -> None:
    module = Python(lambda batch, more: batch["x"] + batch["p"] + torch.from_numpy(more))
    batch = UserDict(x=X, p=POSITIONS)
    few = UserDict(x=X[:2], p=POSITIONS)
    more = np.ones((1, 1), np.float32)
    modcache.lookup_or_run(module, (few, more), KEYS[:2], scope="s")
    found = modcache.lookup_or_run(module, (batch, more), KEYS, scope="s")
    assert torch.equal(found, X + POSITIONS + 1)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 2}
    modcache.lookup_or_run(module, (batch, more + 1), KEYS, scope="s")
    assert counted() == {"misses": 3, "stored": 3}


def test_keyword_arguments_of_a_cached_module(counted: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, ids: torch.Tensor, *, position_ids: torch.Tensor) -> torch.Tensor:
            return ids * 10 + position_ids

    model = modcache.cached(Model(), key="keys", freeze=True)
    for _ in range(2):
        found = model(X, position_ids=POSITIONS, keys=KEYS)
        assert torch.equal(found, X * 10 + POSITIONS)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}
    assert modcache.explain(ADDS, (X, POSITIONS), KEYS, scope="s").status == "miss"
    modcache.lookup_or_run(ADDS, (X, POSITIONS), KEYS, scope="s")
    assert modcache.explain(ADDS, (X, POSITIONS), KEYS, scope="s").status == "hit"


def test_beside_rows_whose_content_is_the_key(counted: Any) -> None:
    assert modcache.content_keys((X, POSITIONS)) == [
        modcache.content_key((row, POSITIONS[0])) for row in X
    ]
    model = modcache.cached(ADDS, key=modcache.content_keys, scope="s")
    for positions in (POSITIONS, POSITIONS, (POSITIONS + 1)):
        assert torch.equal(model(X, positions), X + positions)
    assert torch.equal(model(X[1:], POSITIONS), X[1:] + POSITIONS)
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 5}
    for sizes in ((3, 2), (3, 2, 1)):
        with pytest.raises((ValueError, RuntimeError), match="rows"):
            modcache.content_keys(tuple(X[:size] for size in sizes))
    with pytest.raises(ValueError, match="sparse"):
        modcache.content_keys((X, POSITIONS.to_sparse()))


def test_beside_keys_that_are_an_argument(counted: Any) -> None:
    @modcache.cached(key="names", scope="s")
    def lengths(x: torch.Tensor, names: list[str]) -> torch.Tensor:
        return x * torch.tensor([[float(len(name))] for name in names])

    for mode in ("on", "on", "off"):
        with modcache.mode(mode):
            found = lengths(POSITIONS, ["a", "bb", "ccc"])
            assert torch.equal(found, POSITIONS * torch.tensor([[1.0], [2.0], [3.0]]))
    lengths(POSITIONS + 1, ["a", "bb", "ccc"])
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 3, "bypassed_off": 3}


def test_beside_images() -> None:
    pil = pytest.importorskip("PIL.Image")
    images = [pil.new("L", (2, 2), shade) for shade in range(3)]

    def give(images: Any, shift: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[float(image.getpixel((0, 0)))] for image in images]) + shift

    module = Python(give)
    for shift in (POSITIONS, POSITIONS + 1):
        modcache.lookup_or_run(module, (images[1:], shift), KEYS[1:], scope="s")
        found = modcache.lookup_or_run(module, (images, shift), KEYS, scope="s")
        assert torch.equal(found, give(images, shift))


def test_a_shared_argument_that_requires_grad_is_seen() -> None:
    trained = POSITIONS.clone().requires_grad_()
    for positions in (POSITIONS, trained, trained):
        found = modcache.lookup_or_run(ADDS, (X, positions), KEYS, scope="s")
        assert found.requires_grad == positions.requires_grad


@pytest.mark.parametrize(
    "given", [(POSITIONS,), (POSITIONS, POSITIONS), (X, X[:2]), (X, torch.tensor(1.0))], ids=str
)
def test_other_sizes_are_errors_as_ever(given: Any) -> None:
    module = Python(lambda *parts: parts[0])
    for mode in ("on", "off"):
        with modcache.mode(mode), pytest.raises((ValueError, RuntimeError), match="3 keys"):
            modcache.lookup_or_run(module, given, KEYS, scope="s")


def test_where_nothing_is_cached_the_rule_is_the_same() -> None:
    module = Python(lambda x, positions, _: x + positions)
    found = modcache.lookup_or_run(module, (X, POSITIONS, object()), KEYS, scope="s")
    assert torch.equal(found, X + POSITIONS)
    with modcache.mode("off"):
        found = modcache.lookup_or_run(ADDS, (X, POSITIONS), KEYS, scope="s")
    assert torch.equal(found, X + POSITIONS)


class Scripts(torch.nn.Module):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x + positions


def test_scripted_modules_take_them_too(counted: Any) -> None:
    scripted = torch.jit.script(Scripts())
    modcache.lookup_or_run(scripted, (X[:2], POSITIONS), KEYS[:2], scope="s")
    found = modcache.lookup_or_run(scripted, (X, POSITIONS), KEYS, scope="s")
    assert torch.equal(found, X + POSITIONS)
    modcache.lookup_or_run(Scripts(), (X, POSITIONS), KEYS, scope="s")
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 5}
    assert modcache.explain(scripted, (X, POSITIONS), KEYS).status == "miss"
    modcache.lookup_or_run(scripted, (X, POSITIONS), KEYS)
    assert modcache.explain(scripted, (X, POSITIONS), KEYS).status == "hit"
