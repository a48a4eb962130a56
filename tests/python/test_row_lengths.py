# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length: one entry for a sentence, whatever its batch is padded to."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from padded_rows import LENGTHS, WIDTH, Tower, assert_padded, padded, padded_batch, sentences
from torch import nn


@pytest.fixture(params=["eager", "scripted"])
def tower(request: Any) -> nn.Module:
    made = Tower().requires_grad_(False).eval()
    return torch.jit.script(made) if request.param == "scripted" else made


def look_up(tower: nn.Module, rows: list[torch.Tensor], ids: list[int], **options: Any) -> Any:
    longest = options.pop("longest", 0)
    batch = padded_batch([rows[i] for i in ids], longest)
    return batch, modcache.lookup_or_run(tower, batch, ids, mask="mask", **options)


def check(batch: Any, result: Any, tower: nn.Module, pad_value: float = 0.0) -> None:
    """Checks the true part against the module's own result, and what is after it."""
    tokens, mask = batch
    states, mean = tower(tokens, mask)
    found, found_mean = result
    assert_padded(found, states, mask, pad_value)
    assert torch.allclose(found_mean, mean, atol=1e-5)


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_row_is_found_at_every_padding(tower: nn.Module, tier: str) -> None:
    if tier == "disk":
        modcache.configure(memory="0")
    rows = sentences()
    order = list(range(len(rows)))
    check(*look_up(tower, rows, order), tower)
    modcache.flush()
    modcache.reset_stats()
    for ids in (order, [0, 2], [5, 3, 1], [2], [4, 0]):
        for longest in (0, 9):
            check(*look_up(tower, rows, ids, longest=longest), tower)
    assert modcache.stats()["misses"] == modcache.stats()["key_conflicts"] == 0


def test_misses_hits_and_mixed_batches_are_padded_alike(tower: nn.Module) -> None:
    rows = sentences()
    for ids in ([1, 3], [0, 1, 2, 3], [0, 1, 2, 3]):
        check(*look_up(tower, rows, ids, pad_value=-5.0), tower, -5.0)
    assert modcache.stats()["misses"] == 4
    check(*look_up(tower, rows, [0, 1, 2, 3], pad_value=2.5, longest=12), tower, 2.5)
    assert modcache.stats()["misses"] == 4


def test_entries_are_as_long_as_their_rows(tower: nn.Module) -> None:
    rows = sentences()
    taken = []
    for scope, longest in (("a", 0), ("b", 512)):
        before = modcache.stats()["bytes_memory"]
        look_up(tower, rows, list(range(len(rows))), longest=longest, scope=scope)
        taken.append(modcache.stats()["bytes_memory"] - before)
    assert taken[0] == taken[1]


def test_only_the_true_part_of_the_input_counts(tower: nn.Module) -> None:
    rows = sentences()
    tokens, mask = padded_batch(rows)
    ids = list(range(len(rows)))
    modcache.lookup_or_run(tower, (tokens, mask), ids, mask=1)
    other = tokens.masked_fill(mask == 0, 13)
    modcache.lookup_or_run(tower, (other, mask), ids, mask=1)
    assert modcache.stats()["key_conflicts"] == 0
    edited = tokens.clone()
    edited[1, 0] += 1
    modcache.lookup_or_run(tower, (edited, mask), ids, mask=1)
    assert modcache.stats()["key_conflicts"] == 1
    shorter = mask.clone()
    shorter[0, LENGTHS[0] - 1] = 0
    modcache.lookup_or_run(tower, (edited, shorter), ids, mask=1)
    assert modcache.stats()["key_conflicts"] == 2


@pytest.mark.parametrize("given", ["name", "place", "tensor", "lengths"])
def test_the_ways_to_say_which_part_is_true(tower: nn.Module, given: str) -> None:
    rows = sentences()
    batch = padded_batch(rows)
    mask = batch[1]
    options: Any = {
        "name": {"mask": "mask"},
        "place": {"mask": 1},
        "tensor": {"mask": mask.bool()},
        "lengths": {"lengths": torch.tensor(LENGTHS)},
    }[given]
    ids = list(range(len(rows)))
    for _ in range(2):
        check(batch, modcache.lookup_or_run(tower, batch, ids, **options), tower)
    check(batch, modcache.lookup_or_run(tower, batch, ids, mask="mask"), tower)
    assert modcache.stats()["misses"] == len(rows)


def test_a_width_that_is_the_length_by_chance_is_not_padded(tower: nn.Module) -> None:
    rows = [torch.randint(1, 50, (length,)) for length in (WIDTH, 3)]
    for ids in ([0, 1], [1], [0, 1]):
        check(*look_up(tower, rows, ids), tower)
    assert modcache.stats()["misses"] == 2


@pytest.mark.parametrize("lengths", [[4, 4], [1, 1]])
def test_rows_without_padding_are_padded_once_to_see_what_it_does(
    tower: nn.Module, lengths: list[int]
) -> None:
    rows = [torch.randint(1, 50, (length,)) for length in lengths]
    for longest in (0, 9):
        check(*look_up(tower, rows, [0, 1], longest=longest), tower)
    assert modcache.stats()["misses"] == 2


class Mixed(Tower):
    """Tells its warnings from those of other tests."""


class Holes(Tower):
    """Does too."""


@pytest.mark.parametrize(
    ("kind", "row", "why"),
    [(Mixed, [0, 0, 1, 1], "on the left in some rows"), (Holes, [1, 0, 1, 1], "holes in its mask")],
)
def test_rows_whose_true_parts_are_not_on_one_side_are_not_cached(
    kind: Any, row: list[int], why: str, capfd: Any
) -> None:
    tower = kind().requires_grad_(False).eval()
    tokens, mask = torch.randint(1, 50, (2, 4)), torch.tensor([row, [1, 1, 1, 0]])
    states, _ = modcache.lookup_or_run(tower, (tokens, mask), [0, 1], mask=1)
    assert torch.equal(states, tower(tokens, mask)[0])
    assert modcache.stats()["bypassed_type"] == 2
    assert why in capfd.readouterr().err


def test_mode_off_gives_the_modules_own_result(tower: nn.Module) -> None:
    batch = padded_batch(sentences())
    ids = list(range(len(LENGTHS)))
    with modcache.mode("off"):
        states, _ = modcache.lookup_or_run(tower, batch, ids, mask="mask")
    assert torch.equal(states, tower(*batch)[0])


@pytest.mark.parametrize("wanted", ["read", "refresh", "verify"])
def test_other_modes(tower: nn.Module, wanted: str) -> None:
    rows = sentences()
    look_up(tower, rows, [0, 1, 2])
    with modcache.mode(wanted):
        for longest in (0, 10):
            check(*look_up(tower, rows, [0, 1, 2, 3], longest=longest), tower)
    assert modcache.stats()["verify_differences"] == 0


def test_attention_maps_are_padded_in_two_dimensions() -> None:
    class Maps(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.transpose(1, 2)).masked_fill(mask[:, None] == 0, -1e9)
            return scores.softmax(-1)

    x = torch.randn(2, 5, 3)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    for end in (5, 5, 3):
        ids = [0, 1] if end == 5 else [0]
        maps = modcache.lookup_or_run(
            Maps(), (x[: len(ids), :end], mask[: len(ids), :end]), ids, mask=1
        )
        assert torch.allclose(maps[0, :3, :3], Maps()(x, mask)[0, :3, :3], atol=1e-6)
        assert (maps[0, 3:] == 0).all()
    assert modcache.stats()["misses"] == 2


def test_a_row_of_no_length(tower: nn.Module) -> None:
    class Tokens(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x * 2

    x, mask = torch.randn(2, 3, 2), torch.tensor([[0, 0, 0], [1, 1, 0]])
    for _ in range(2):
        found = modcache.lookup_or_run(Tokens(), (x, mask), [0, 1], mask=1)
        assert (found[0] == 0).all()
        assert torch.equal(found[1, :2], x[1, :2] * 2)
    assert modcache.stats()["misses"] == 3, "it is not stored, as nothing tells it from others"


def test_one_key_twice_in_a_batch(tower: nn.Module) -> None:
    rows = sentences()
    for _ in range(2):
        check(*look_up(tower, rows, [0, 1, 0]), tower)
    assert modcache.stats()["misses"] == 2


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_narrowed_entries(tower: nn.Module, narrow: str) -> None:
    modcache.configure(dtype=narrow)
    rows = sentences()
    look_up(tower, rows, [0, 1, 2])
    batch, (states, _) = look_up(tower, rows, [0, 1, 2, 3], pad_value=-1e30)
    is_true = batch[1].bool()
    assert torch.allclose(states[is_true], tower(*batch)[0][is_true], atol=0.05)
    assert (states[~is_true] == torch.tensor(-1e30)).all()
    assert modcache.stats()["misses"] == 4


def test_mistakes(tower: nn.Module) -> None:
    tokens, mask = batch = padded_batch(sentences()[:2])
    call = modcache.lookup_or_run
    with pytest.raises(ValueError, match="give one of them"):
        call(tower, batch, [0, 1], mask=1, lengths=torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"no such argument; there are: tokens, mask"):
        call(tower, batch, [0, 1], mask="attention_mask")
    with pytest.raises(ValueError, match="2 arguments by place"):
        call(tower, batch, [0, 1], mask=2)
    with pytest.raises(ValueError, match="one key for the whole input"):
        call(tower, batch, "k", mask=1)
    with pytest.raises(ValueError, match=r"a dense tensor \[rows, longest\]"):
        call(tower, batch, [0, 1], mask=mask[0])
    nested = torch.nested.nested_tensor([mask[0], mask[1]], layout=torch.jagged)
    with pytest.raises(ValueError, match="but got one that is"):
        call(tower, batch, [0, 1], mask=nested)
    with pytest.raises(ValueError, match="2 keys were given, but the mask is for 1 rows"):
        call(tower, batch, [0, 1], mask=mask[:1])
    with pytest.raises(ValueError, match="length 1 is 9, but must be from 0 to 7"):
        call(tower, batch, [0, 1], lengths=torch.tensor([1, 9]))
    with pytest.raises(ValueError, match="tensor of integers"):
        call(tower, batch, [0, 1], lengths=torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"sizes \[4, 7\]; give a mask"):
        call(tower, (tokens, torch.zeros(2, 4)), [0, 1], lengths=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="ragged is for rows without mask"):
        call(tower, batch, [0, 1], mask=1, ragged="list")
    assert modcache.stats()["misses"] == 0
    assert tokens.shape == mask.shape


def test_explain_names_the_length_of_the_row_whose_key_was_stored_for_another() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x * mask[..., None]

    def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
        return padded(list(lengths), 6)

    module = Masked()
    modcache.lookup_or_run(module, batch(2, 4), ["a", "b"], mask=1)
    x, mask = batch(2, 2, 5)
    x[1] = x[0]
    told = modcache.explain(module, (x, mask), ["c", "c", "b"], mask=1)
    assert "float32[4,5]" in told.reason
    assert "float32[5,5]" in told.reason


def test_explain_sees_the_true_part(tower: nn.Module) -> None:
    rows = sentences()
    look_up(tower, rows, [0, 1])
    batch = padded_batch(rows[:3], 11)
    found = modcache.explain(tower, batch, [0, 1, 2], mask="mask")
    assert (found.status, found.first_missing) == ("partial", ["2"])


def test_cached_and_fill_take_the_mask(tower: nn.Module) -> None:
    rows = sentences()
    eager = Tower().requires_grad_(False).eval()
    module = modcache.cached(eager, key="ids", mask="mask", pad_value=3.0)
    batches = [(*padded_batch(rows[:2]), [0, 1]), (*padded_batch(rows[2:]), [2, 3, 4, 5])]
    assert modcache.fill(module, batches, progress=False).stored == 6
    modcache.reset_stats()
    tokens, mask = batch = padded_batch(rows)
    check(batch, module(tokens, mask=mask, ids=list(range(6))), eager, 3.0)
    assert (
        modcache.fill(eager, [(batch, list(range(6)))], key=1, mask="mask", progress=False).runs
        == 0
    )
    assert modcache.stats()["misses"] == 0
    with pytest.raises(TypeError, match="the name or the place of an argument"):
        modcache.cached(eager, key="ids", mask=1.5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="give one of them"):
        modcache.cached(eager, key="ids", mask="mask", lengths="lengths")


def test_a_lazy_module_takes_the_mask() -> None:
    rows = sentences()
    look_up(Tower().requires_grad_(False).eval(), rows, [0, 1], scope="tower")
    lazy = modcache.lazy(lambda: pytest.fail("loaded"), scope="tower")
    batch = padded_batch(rows[:2], 9)
    states, _ = modcache.lookup_or_run(lazy, batch, [0, 1], mask=1)
    assert states.shape == (2, 9, WIDTH)


def test_the_name_of_an_argument_is_found_without_loading_a_lazy_module() -> None:
    rows = sentences()
    look_up(Tower().requires_grad_(False).eval(), rows, [0, 1], scope="tower")
    lazy = modcache.lazy(lambda: pytest.fail("loaded"), scope="tower")
    tokens, mask = batch = padded_batch(rows[:2], 9)
    with pytest.raises(ValueError, match=r"mask='mask'.*not loaded; give the place, mask=1"):
        modcache.lookup_or_run(lazy, batch, [0, 1], mask="mask")
    with pytest.raises(ValueError, match="not loaded; give the place"):
        modcache.explain(lazy, batch, [0, 1], mask="mask")
    with pytest.raises(ValueError, match=r"lengths='sizes'.*not loaded"):
        modcache.lookup_or_run(lazy, batch, [0, 1], lengths="sizes")
    batch_of_names = {"tokens": tokens, "mask": mask}

    class Named(Tower):
        def forward(self, batch: dict[str, torch.Tensor]) -> Any:  # type: ignore[override]
            return super().forward(batch["tokens"], batch["mask"])

    made = Named().requires_grad_(False).eval()
    for module in (made, lazy):
        modcache.lookup_or_run(module, batch_of_names, [7, 8], mask="mask", scope="tower")
    assert modcache.stats()["hits_memory"] == 2
    by_name = {"tokens": tokens, "mask": mask, "ids": [4, 5]}
    for factory in (lambda: Tower().requires_grad_(False).eval(), lambda: pytest.fail("loaded")):
        encoder = modcache.cached(modcache.lazy(factory, scope="t"), key="ids", mask="mask")
        assert encoder(**by_name)[0].shape == (2, 9, WIDTH)


def test_the_name_of_an_argument_of_a_loaded_lazy_module_is_that_of_its_parameter() -> None:
    rows = sentences()
    lazy = modcache.lazy(lambda: Tower().requires_grad_(False).eval(), scope="loaded")
    lazy.load()
    for _ in range(2):
        states, _ = modcache.lookup_or_run(lazy, padded_batch(rows[:2]), [0, 1], mask="mask")
    assert states.shape == (2, 7, WIDTH)
    assert (modcache.stats()["misses"], modcache.stats()["hits_memory"]) == (2, 2)


def test_the_batch_of_a_tokenizer(tower: nn.Module) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = Tower()

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            states: torch.Tensor = self.tower(batch["input_ids"], batch["attention_mask"])[0]
            return states

    module = Named().requires_grad_(False).eval()
    rows = sentences()
    for longest in (0, 12):
        tokens, mask = padded_batch(rows, longest)
        batch = {"input_ids": tokens, "attention_mask": mask.long()}
        found = modcache.lookup_or_run(module, batch, list(range(6)), mask="attention_mask")
        assert found.shape == (*tokens.shape, WIDTH)
    assert modcache.stats()["misses"] == 6


def test_an_ignored_argument_needs_no_rows() -> None:
    class Extra(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return x * 2

    module = modcache.cached(Extra(), key="ids", mask="mask", ignore="n")
    x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for n in (torch.tensor(3.0), torch.arange(7)):
        module(x, mask, n, ids=[0, 1])
    assert modcache.stats()["misses"] == 2


def test_positions_that_all_rows_share_are_cut_with_them() -> None:
    class Placed(nn.Module):
        def forward(
            self, x: torch.Tensor, mask: torch.Tensor, position_ids: torch.Tensor
        ) -> torch.Tensor:
            return x + position_ids[..., None]

    x = torch.randn(3, 6, 2)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    for rows, longest in (([0, 1, 2], 6), ([0, 1], 3), ([1, 0], 4), ([1], 3)):
        batch = (x[rows, :longest], mask[rows, :longest], torch.arange(longest)[None])
        found = modcache.lookup_or_run(Placed(), batch, rows, mask=1)
        is_true = batch[1].bool()
        assert torch.equal(found[is_true], Placed()(*batch)[is_true])
    assert modcache.stats()["misses"] == 3
