# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length: results and arguments whose sizes do not follow the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from padded_rows import Tower, padded_batch, sentences
from torch import nn

LENGTHS = [2, 5, 3, 7]


def batch(rows: list[int], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(len(LENGTHS), 16, 3)[rows, :longest]
    lengths = torch.tensor(LENGTHS)[rows]
    return x, (torch.arange(longest) < lengths[:, None]).long()


class Function(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> torch.Tensor:
        return self.function(*arguments)


def to_longest_row(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[:, : int(mask.sum(1).max())] * 2


def in_steps_of_four(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[:, ::4] * 2


def to_a_multiple_of_eight(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x * mask[..., None], (0, 0, 0, -x.shape[1] % 8))


def eight_at_least(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x * mask[..., None], (0, 0, 0, max(0, 8 - x.shape[1])))


@pytest.mark.parametrize(
    "function", [to_longest_row, in_steps_of_four, to_a_multiple_of_eight, eight_at_least]
)
def test_sizes_that_follow_otherwise_are_not_cached(function: Any) -> None:
    module = Function(function)
    for rows, longest in (([0, 1], 5), ([0, 1, 2], 7), ([2, 0], 5), ([1, 3], 16), ([0, 1], 5)):
        given = batch(rows, longest)
        found = modcache.lookup_or_run(module, given, rows, mask=1)
        assert torch.equal(found, module(*given))


def test_two_arguments_that_were_padded_to_one_size_by_chance() -> None:
    def both(
        x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor, its_mask: torch.Tensor
    ) -> torch.Tensor:
        weights = mask[..., None] / mask.sum(1)[:, None, None]
        return y * its_mask[..., None] + (x * weights).sum(1)[:, None]

    module = Function(both)
    for rows, others in (([0, 1], [3, 2]), ([0, 1], [3, 2]), ([2, 0], [1, 3])):
        given = (*batch(rows, 7), *batch(others, 7))
        found = modcache.lookup_or_run(module, given, rows, mask=1)
        assert torch.allclose(found, module(*given), atol=1e-6)
    assert modcache.stats()["stored"] == 0


class Columns(nn.Module):
    """Takes all columns of a batch, as models of transformers do, and uses some of them."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, **columns: Any) -> torch.Tensor:
        if "added" in columns:
            x = x + columns["added"].sum(1, keepdim=True)
        if "sides" in columns:
            x = x + columns["sides"]
        if "shown" in columns:
            weights = columns["shown"][..., None] * mask.any(1)[:, None, None]
            x = x + (columns["memory"] * weights).sum(1, keepdim=True)
        return x * mask[..., None]


class LenientColumns(Columns):
    """Takes its mask for one of the first tokens, as decoders of transformers do."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, **columns: Any) -> torch.Tensor:
        mask = nn.functional.pad(mask, (0, max(0, x.shape[1] - mask.shape[1])))
        return super().forward(x, mask, **columns)


UNUSED = {
    "labels": torch.tensor([[-100, 3, 1, -100, -100], [0, 0, 0, 0, 0]]),
    "offsets": torch.arange(20).reshape(2, 5, 2),
    "special": torch.tensor([[1, 0, 1, 1, 1], [1, 0, 0, 0, 1]]).bool(),
    "weights": torch.ones(2, 5),
    "positions": torch.arange(5)[None],
    "again": torch.zeros(2, 5, dtype=torch.uint8),
}


@pytest.mark.parametrize("kind", [Columns, LenientColumns])
@pytest.mark.parametrize("names", [[name] for name in UNUSED] + [["special", "labels", "again"]])
def test_columns_that_the_module_does_not_use(
    kind: type[nn.Module], names: list[str], counted: Callable[[], dict[str, int]]
) -> None:
    cached = modcache.cached(kind(), key="ids", mask="mask")
    x, mask = batch([0, 1], 5)
    columns = {name: UNUSED[name] for name in names}
    for expected in ({"misses": 2, "stored": 2}, {"hits_memory": 2}):
        found = cached(x=x, mask=mask, **columns, ids=[0, 1])
        assert torch.equal(found, x * mask[..., None])
        assert counted() == expected
    short = {name: column[:1, :4] for name, column in columns.items()}
    if "positions" not in names:  # [1, 4] beside one key is its row, and no longer that of all
        cached(x=x[:1, :4], mask=mask[:1, :4], **short, ids=[0])
        assert counted() == {"hits_memory": 1}


@pytest.mark.parametrize("kind", [Columns, LenientColumns])
@pytest.mark.parametrize("names", [["added"], ["added", "labels"], ["memory", "shown"]])
def test_columns_that_the_module_uses_without_the_mask(
    kind: type[nn.Module], names: list[str]
) -> None:
    cached = modcache.cached(kind(), key="ids", mask="mask")
    x, mask = batch([0, 1], 5)
    shown = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 0, 0, 0]])  # the shortest row needs no memory
    more = {"added": torch.rand(2, 5, 3), "memory": torch.rand(2, 5, 3), "shown": shown, **UNUSED}
    columns = {name: more[name] for name in names}
    for _ in range(2):
        found = cached(x=x, mask=mask, **columns, ids=[0, 1])
        assert torch.equal(found, kind()(x, mask, **columns))
    assert modcache.stats()["stored"] == 0


def test_a_parameter_that_one_row_does_not_need_counts_as_used(capfd: Any) -> None:
    class Gated(nn.Module):
        def forward(
            self, x: torch.Tensor, mask: torch.Tensor, memory: torch.Tensor, gate: torch.Tensor
        ) -> torch.Tensor:
            gated = gate[:, None, None] * memory.sum(1, keepdim=True)
            return (x + gated) * mask[..., None]

    module = Gated()
    x, mask = batch([0, 1], 5)
    given = {"memory": torch.rand(2, 5, 3), "gate": torch.tensor([0.0, 1.0])}
    cached = modcache.cached(module, key="ids", mask="mask")
    for _ in range(2):
        found = cached(x=x, mask=mask, **given, ids=[0, 1])
        assert torch.equal(found, module(x, mask, **given))
    assert modcache.stats()["stored"] == 0
    modcache.flush()
    says = capfd.readouterr().err
    assert "several lengths" in says
    assert "ignore=" in says


def test_an_ignored_argument_before_others_is_not_taken_for_one_of_them(
    counted: Callable[[], dict[str, int]],
) -> None:
    class Sides(nn.Module):
        def forward(
            self, labels: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, side: torch.Tensor
        ) -> torch.Tensor:
            return (x + side) * mask[..., None]

    cached = modcache.cached(Sides(), key="ids", mask="mask", ignore=("labels",))
    x, mask = batch([0, 1], 5)
    for expected in ({"misses": 2, "stored": 2}, {"hits_memory": 2}):
        found = cached(UNUSED["labels"], x, mask, x.flip(2), ids=[0, 1])
        assert torch.equal(found, Sides()(UNUSED["labels"], x, mask, x.flip(2)))
        assert counted() == expected


def test_a_maximum_that_agrees_by_chance_at_first() -> None:
    x, mask = torch.full((2, 8, 3), -1.0), torch.ones(2, 8)
    x[0, 0] = 5
    mask[0, 2:] = 0
    x[0, 2:] = 0
    module = Function(lambda x, mask: x.amax(1))
    assert torch.equal(modcache.lookup_or_run(module, (x, mask), [0, 1], mask=1), x.amax(1))
    short, its_mask = torch.zeros(2, 8, 3), torch.zeros(2, 8)
    short[0, 0], its_mask[0, 0], its_mask[1] = -1, 1, 1
    found = modcache.lookup_or_run(module, (short, its_mask), [2, 3], mask=1)
    assert torch.equal(found, short.amax(1))
    assert modcache.stats()["stored"] == 2, "those of the first batch"


def test_arrays_beside_a_mask_are_not_cached(capfd: Any) -> None:
    class Arrays(nn.Module):
        def forward(self, x: Any, mask: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x) * 2

    x, mask = batch([0, 1], 5)
    for _ in range(2):
        found = modcache.lookup_or_run(Arrays(), (x.numpy(), mask), [0, 1], mask=1)
        assert torch.equal(found, x * 2)
    assert modcache.stats()["stored"] == 0
    assert "torch.from_numpy" in capfd.readouterr().err
    told = modcache.explain(Arrays(), (x.numpy(), mask), [0, 1], mask=1)
    assert (told.status, "torch.from_numpy" in told.reason) == ("bypassed", True)
    assert isinstance(x.numpy(), np.ndarray)


def test_one_bad_batch_does_not_end_it() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
            return x * side.view(-1, 5).sum(1)[:, None, None]

    module = Wide()
    for rows, longest, misses in (([0, 1], 5, 0), ([0, 1], 7, 2), ([0, 1], 7, 2)):
        given = (*batch(rows, longest), torch.ones(2, 5))
        found = modcache.lookup_or_run(module, given, rows, mask=1)
        is_true = given[1].bool()
        assert torch.allclose(found[is_true], module(*given)[is_true])
        assert modcache.stats()["misses"] == misses


def test_under_compile_it_breaks_the_graph() -> None:
    cached = modcache.cached(Function(lambda x, mask: x * mask[..., None]), key="ids", mask=1)
    compiled = torch.compile(lambda x, mask, ids: cached(x, mask, ids=ids) + 1, backend="eager")
    for longest in (5, 7):
        x, mask = batch([0, 1], longest)
        assert torch.equal(compiled(x, mask, torch.arange(2)), x * mask[..., None] + 1)
    assert modcache.stats()["misses"] == 2


def test_content_keys_have_no_rows_of_their_own_length() -> None:
    with pytest.raises(ValueError, match="mask and lengths are for keys of rows"):
        modcache.cached(nn.Linear(2, 2), key="content", mask=1)


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_row_of_another_length_replaces_the_entry_where_sizes_are_not_compared(
    tier: str,
) -> None:
    modcache.configure(match="none", **({"memory": "0"} if tier == "disk" else {}))
    tower, (short, long, *_) = Tower().requires_grad_(False).eval(), sentences()
    first, second = padded_batch([short, long]), padded_batch([long, long])
    modcache.lookup_or_run(tower, first, ["a", "b"], mask="mask")
    modcache.flush()
    modcache.reset_stats()
    for _ in range(2):
        states, _ = modcache.lookup_or_run(tower, second, ["a", "b"], mask="mask")
        torch.testing.assert_close(states, tower(*second)[0])
        modcache.flush()
    counts = modcache.stats()
    assert (counts["key_conflicts"], counts["corrupt"]) == (1, 0)
    assert (counts["misses"], counts["stored"]) == (1, 1), "found by the second call"


class FirstPixels(nn.Module):
    def forward(self, images: list[Any], ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ids * mask + torch.tensor([image.getpixel((0, 0)) for image in images])[:, None]


# The last is the size of a digest in bytes. A digest that is cut as rows are could be another's.
@pytest.mark.parametrize("longest", [0, 1, 4, 32])
def test_padding_never_cuts_the_digests_of_images(longest: int) -> None:
    pil = pytest.importorskip("PIL.Image")
    ids = torch.arange(300 * longest).view(300, longest)
    mask = (torch.arange(longest) < torch.ones(300, 1)).long()
    keys = [str(row) for row in range(300)]
    modcache.configure(memory=0)
    for shift in (0, 1000):  # two bytes of a digest would be alike for some of so many
        images = [pil.new("I", (2, 2), shift + row) for row in range(300)]
        expected = FirstPixels()(images, ids, mask)
        for misses in (300, 0):
            modcache.reset_stats()
            found = modcache.lookup_or_run(FirstPixels(), (images, ids, mask), keys, mask=2)
            assert torch.equal(found[mask.bool()], expected[mask.bool()])
            modcache.flush()
            if longest:
                assert modcache.stats()["misses"] == misses
