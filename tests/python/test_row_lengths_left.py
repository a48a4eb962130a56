# SPDX-License-Identifier: Apache-2.0
"""Rows that are padded on the left: kept where another padding was seen to change nothing."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from padded_rows import WIDTH, assert_padded, padded_batch, sentences
from torch import nn
from transformers import GPT2Config, GPT2Model

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Placed(nn.Module):
    """Tokens at positions, each of which sees itself and the true ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.places = nn.Embedding(40, WIDTH)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        length = tokens.shape[1]
        if positions is None:
            positions = torch.arange(length)[None]
        states = self.words(tokens) + self.places(positions)
        is_seen = torch.ones(length, length).tril()[None] * (mask != 0)[:, None]
        scores = (states @ states.transpose(1, 2)).masked_fill(is_seen == 0, -1e4)
        states = scores.softmax(-1) @ states
        return states, states[:, -1]


def placed() -> nn.Module:
    return Placed().requires_grad_(False).eval()


@pytest.fixture(params=["eager", "scripted"])
def module(request: Any) -> nn.Module:
    return torch.jit.script(placed()) if request.param == "scripted" else placed()


def left_batch(rows: list[torch.Tensor], longest: int = 0) -> Batch:
    """Tokens, mask, and positions that count from the first token of each row."""
    tokens, mask = padded_batch([row.flip(0) for row in rows], longest)
    tokens, mask = tokens.flip(1), mask.flip(1).long()
    return tokens, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def check(
    module: nn.Module, rows: list[torch.Tensor], ids: list[int], longest: int = 0, **options: Any
) -> None:
    """Checks the true part against the module's own result, and what is before it."""
    batch = left_batch([rows[i] for i in ids], longest)
    states, last = module(*batch)
    found, found_last = modcache.lookup_or_run(module, batch, ids, mask="mask", **options)
    assert_padded(found, states, batch[1], options.get("pad_value", 0.0))
    assert torch.allclose(found_last, last, atol=1e-5)


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_row_is_found_at_every_padding(module: nn.Module, tier: str) -> None:
    if tier == "disk":
        modcache.configure(memory="0")
    rows = sentences()
    check(module, rows, list(range(6)))
    modcache.flush()
    modcache.reset_stats()
    for ids in ([0, 1, 2, 3, 4, 5], [0, 2], [5, 3, 1], [4, 0]):
        for longest in (0, 9):
            check(module, rows, ids, longest, pad_value=-2.5 if longest else 0.0)
    assert modcache.stats()["misses"] == modcache.stats()["key_conflicts"] == 0


def test_misses_hits_and_mixed_batches_are_padded_alike(module: nn.Module) -> None:
    rows = sentences()
    for ids in ([0, 3], [0, 1, 2, 3], [3, 2, 1, 0]):
        check(module, rows, ids, pad_value=-5.0)
    assert modcache.stats()["misses"] == 4


@pytest.mark.parametrize("wanted", ["read", "refresh", "verify"])
def test_other_modes(module: nn.Module, wanted: str) -> None:
    rows = sentences()
    check(module, rows, [0, 1, 2])
    with modcache.mode(wanted):
        for longest in (0, 10):
            check(module, rows, [0, 1, 2, 3], longest)
    assert modcache.stats()["verify_differences"] == 0


def test_only_the_true_part_of_the_input_counts() -> None:
    module, rows = placed(), sentences()
    tokens, mask, positions = left_batch(rows)
    ids = list(range(6))
    modcache.lookup_or_run(module, (tokens, mask, positions), ids, mask=1)
    other = tokens.masked_fill(mask == 0, 13)
    modcache.lookup_or_run(module, (other, mask, positions), ids, mask=1)
    assert modcache.stats()["key_conflicts"] == 0
    edited = tokens.clone()
    edited[0, -1] += 1
    modcache.lookup_or_run(module, (edited, mask, positions), ids, mask=1)
    assert modcache.stats()["key_conflicts"] == 1


def test_positions_that_follow_the_padding_are_another_input() -> None:
    module, rows = placed(), sentences()
    for longest in (0, 9, 9):
        tokens, mask, _ = left_batch(rows[:3], longest)
        batch = (tokens, mask, torch.arange(tokens.shape[1]).repeat(3, 1))
        found, _ = modcache.lookup_or_run(module, batch, [0, 1, 2], mask=1)
        is_true = mask.bool()
        assert torch.allclose(found[is_true], module(*batch)[0][is_true], atol=1e-5)
    assert modcache.stats()["key_conflicts"] == 3


class Shifting(Placed):
    """Tells its warnings from those of other tests."""


def test_a_module_without_positions_is_not_cached_and_says_what_it_needs(capfd: Any) -> None:
    module, rows = Shifting().requires_grad_(False).eval(), sentences()
    for longest in (0, 9):
        tokens, mask, _ = left_batch(rows[:3], longest)
        states, _ = modcache.lookup_or_run(module, (tokens, mask), [0, 1, 2], mask=1)
        assert torch.equal(states, module(tokens, mask)[0])
    assert modcache.stats()["stored"] == 0
    says = capfd.readouterr().err
    assert "position_ids" in says
    assert 'padding_side="right"' in says


def test_what_calls_with_positions_showed_says_nothing_of_calls_without(counted: Any) -> None:
    module, rows = placed(), sentences()
    for key in range(0, 30, 3):  # more batches than are tried
        modcache.lookup_or_run(module, left_batch(rows[:3]), [key, key + 1, key + 2], mask=1)
    assert counted()["stored"] == 30
    tokens, mask, _ = left_batch(rows[:3])
    states, _ = modcache.lookup_or_run(module, (tokens, mask), [90, 91, 92], mask=1)
    assert torch.equal(states, module(tokens, mask)[0])
    assert "stored" not in counted()


def test_entries_of_rows_that_are_padded_on_the_right_are_not_found() -> None:
    module, rows = placed(), sentences()
    tokens, mask = padded_batch(rows[:3])
    modcache.lookup_or_run(module, (tokens, mask.long()), [0, 1, 2], mask=1, scope="placed")
    tokens, mask, _ = left_batch(rows[:3])
    states, _ = modcache.lookup_or_run(module, (tokens, mask), [0, 1, 2], mask=1, scope="placed")
    assert torch.equal(states, module(tokens, mask)[0])
    assert modcache.stats()["hits_memory"] == modcache.stats()["key_conflicts"] == 0


def test_attention_maps_are_padded_in_two_dimensions() -> None:
    class Maps(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.transpose(1, 2)).masked_fill(mask[:, None] == 0, -1e9)
            return scores.softmax(-1)

    x = torch.randn(2, 5, 3)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for ids, first in (([0, 1], 0), ([0, 1], 0), ([0], 1)):
        maps = modcache.lookup_or_run(
            Maps(), (x[: len(ids), first:], mask[: len(ids), first:]), ids, mask=1
        )
        assert torch.allclose(maps[0, -3:, -3:], Maps()(x, mask)[0, 2:, 2:], atol=1e-6)
        assert (maps[0, :-3] == 0).all()
        assert (maps[0, :, :-3] == 0).all()
    assert modcache.stats()["misses"] == 2


def test_explain_tells_the_sides_apart() -> None:
    module, rows = placed(), sentences()
    check(module, rows, [0, 1])
    asked = modcache.explain(module, left_batch(rows[:3], 11), [0, 1, 2], mask="mask")
    assert (asked.status, asked.first_missing) == ("partial", ["2"])
    tokens, mask = padded_batch(rows[:3])
    right = (tokens, mask.long(), mask.long())
    assert modcache.explain(module, right, [0, 1, 2], mask="mask").status == "miss"


def gpt2() -> nn.Module:
    model = GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=64))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.requires_grad_(False).eval()


@pytest.mark.parametrize("are_given", [True, False])
def test_gpt2_of_transformers(are_given: bool) -> None:
    model, rows = gpt2(), sentences()
    encoder = modcache.cached(model, key="ids", mask="attention_mask")
    for longest in (0, 9):
        tokens, mask, positions = left_batch(rows, longest)
        inputs = {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
        if are_given:
            inputs["position_ids"] = positions
        found = encoder(**inputs, ids=list(range(6))).last_hidden_state
        is_true = mask.bool()
        assert torch.allclose(found[is_true], model(**inputs).last_hidden_state[is_true], atol=1e-4)
    grown = modcache.stats()
    assert (grown["misses"], grown["hits_memory"]) == ((6, 6) if are_given else (0, 0))
    assert grown["stored"] == (6 if are_given else 0)
