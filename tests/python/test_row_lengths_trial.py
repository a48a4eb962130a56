# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length: what one more run of a row shows of padding, and what is never kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from padded_rows import padded
from torch import nn


def test_a_width_that_is_the_length_in_an_input_is_not_guessed(capfd: Any) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x * 2

    x, mask = torch.randn(2, 4, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(Doubles(), (x, mask), [0, 1], mask=1), x * 2)
    assert modcache.stats()["bypassed_type"] == 4
    assert "as wide in another dimension" in capfd.readouterr().err
    for _ in range(2):  # another batch tells
        found = modcache.lookup_or_run(Doubles(), (x[:1, :3], mask[:1, :3]), [0], mask=1)
        assert torch.equal(found[0, :2], x[0, :2] * 2)
    assert modcache.stats()["misses"] == 1


class Blind(nn.Module):
    """Pays no heed to its mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def test_a_module_that_does_not_heed_its_mask_is_not_cached(capfd: Any) -> None:
    x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(Blind(), (x, mask), [0, 1], mask=1), x.mean(1))
    assert modcache.stats()["stored"] == 0
    assert "does not heed its mask" in capfd.readouterr().err


@pytest.mark.parametrize("lengths", [[3, 7, 1, 5], [1, 7], [7, 1]])
def test_a_row_of_one_place_that_agrees_by_chance_does_not_vouch_for_others(
    lengths: list[int],
) -> None:
    class Reversed(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1).flip(1)

    def padded(longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).float()
        return torch.arange(1.0, longest + 1) * mask, mask

    for longest in (7, 9):
        x, mask = padded(longest)
        found = modcache.lookup_or_run(Reversed(), (x, mask), list(range(len(lengths))), mask=1)
        assert torch.equal(found, Reversed()(x, mask))
    assert modcache.stats()["stored"] == 0


def test_a_dtype_that_depends_on_the_padding_is_named(capfd: Any) -> None:
    class Skipping(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x if bool(mask.all()) else x.double() * mask[..., None]

    x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for _ in range(2):
        found = modcache.lookup_or_run(Skipping(), (x, mask), [0, 1], mask=1)
        assert torch.equal(found, Skipping()(x, mask))
    assert modcache.stats()["stored"] == 0
    modcache.flush()
    says = capfd.readouterr().err
    assert "another dtype where its batch is padded otherwise (Float and Double)" in says
    assert "heed" not in says


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[64, 64], [64, 63]])
def test_nor_where_its_first_batch_is_hardly_padded(dtype: torch.dtype, lengths: list[int]) -> None:
    x = torch.randn(2, 64, 3).to(dtype) + 5
    mask = torch.zeros(2, 64)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    modcache.lookup_or_run(Blind(), (x, mask), [0, 1], mask=1, scope=f"{dtype}{lengths}")
    assert modcache.stats()["stored"] == 0


def test_a_module_with_few_positions_is_tried_with_less_padding() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Embedding(6, 2)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x + self.positions(torch.arange(x.shape[1]))

    module = Positions().requires_grad_(False).eval()
    x, mask = torch.randn(2, 6, 2), torch.tensor([[1] * 6, [1] * 5 + [0]])
    for end in (6, 5):
        found = modcache.lookup_or_run(module, (x[1:, :end], mask[1:, :end]), [1], mask=1)
        assert torch.equal(found[0, :5], module(x, mask)[1, :5])
    assert modcache.stats()["misses"] == 1
    modcache.lookup_or_run(module, (x[:1], mask[:1]), [0], mask=1, scope="longest")
    assert modcache.stats()["stored"] == 1, "no padding was tried"


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_results_that_cannot_be_stored_come_as_they_are(form: str) -> None:
    class Beside(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.device]:
            return x, x.device

    module = torch.jit.script(Beside()) if form == "scripted" else Beside()
    x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    states, device = modcache.lookup_or_run(module, (x, mask), [0, 1], mask=1)
    assert torch.equal(states, x)
    assert device == x.device


def test_results_with_a_graph_keep_it() -> None:
    linear = nn.Linear(3, 2)

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.linear(x)
            return result

    x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    modcache.lookup_or_run(Trained(), (x, mask), [0, 1], mask=1).sum().backward()
    assert linear.weight.grad is not None
    assert modcache.stats()["stored"] == 0


def test_every_dtype_of_a_result_takes_the_padding() -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"half": x.half(), "int8": x.to(torch.int8), "long": x.long(), "bool": x > 0}

    x, mask = torch.randn(2, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for _ in range(2):
        found = modcache.lookup_or_run(Numbers(), (x, mask), [0, 1], mask=1, pad_value=-1e30)
        assert found["half"][0, 2] == -float("inf")
        assert found["int8"][0, 2] == -128
        assert found["long"][0, 2] == -(2**63)
        assert found["bool"][0, 2]
    assert modcache.stats()["misses"] == 2


def test_rows_of_a_recurrent_module_have_its_strides_and_lengths() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 4)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x.transpose(0, 1), lengths, enforce_sorted=False
            )
            out, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], total_length=x.shape[1])
            return out.transpose(0, 1)

    module = Recurrent().requires_grad_(False).eval()
    x = torch.randn(3, 5, 3)
    for lengths in ([5, 5, 5], [2, 5, 3], [2, 5, 3]):
        given = (x, torch.tensor(lengths))
        plain = module(*given)
        found = modcache.lookup_or_run(module, given, [0, 1, 2], lengths=1)
        assert found.stride() == plain.stride()
        assert torch.allclose(found, plain, atol=1e-6)
    assert modcache.stats()["misses"] == 5


def test_a_module_that_cuts_its_input_is_seen_in_long_batches() -> None:
    class FirstSixteen(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x * mask[..., None])[:, :16]

    module = FirstSixteen()
    for batch, lengths in enumerate(([20, 30, 45], [4, 7, 9], [4, 7, 12])):
        longest = max(lengths) + 1
        mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).float()
        x = torch.randn(3, longest, 2)
        keys = [f"{batch} {row}" for row in range(3)]
        found = modcache.lookup_or_run(module, (x, mask), keys, mask=1)
        torch.testing.assert_close(found, module(x, mask))
    assert modcache.stats()["stored"] == 0


def test_another_size_than_before_is_looked_into_anew() -> None:
    class Classes(nn.Module):
        count = 3

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x * mask[..., None]).repeat(1, 1, 2)[..., : Classes.count]

    x, mask = torch.randn(2, 6, 2), torch.ones(2, 6)
    mask[0, 3:] = 0
    for Classes.count in (3, 4):
        keys = [f"{Classes.count} {row}" for row in range(2)]
        for _ in range(2):
            found = modcache.lookup_or_run(Classes(), (x, mask), keys, scope="c@1", mask=1)
            assert torch.equal(found, Classes()(x, mask))


def test_numbers_of_64_bits_are_compared_as_those_of_32() -> None:
    class Leaks(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x + 0.015 * x.mean(1, keepdim=True)

    torch.set_default_dtype(torch.float64)
    try:
        x, mask = torch.rand(2, 12, 3) + 1, torch.ones(2, 12)
        x[0, 6:] = mask[0, 6:] = 0
        modcache.lookup_or_run(Leaks(), (x, mask), [0, 1], mask=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert modcache.stats()["stored"] == 0


STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "to a multiple of eight": lambda x, mask: nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 8)),
    "eight at least": lambda x, mask: nn.functional.pad(x, (0, 0, 0, max(0, 8 - x.shape[1]))),
    "seven at most": lambda x, mask: x[:, :7],
    "as long as the longest row": lambda x, mask: x[:, : int(mask.sum(1).max())],
}


class Applied(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], most: int = 1000) -> None:
        super().__init__()
        self.function = function
        self.positions = nn.Embedding(most, 5).requires_grad_(False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = self.positions(torch.arange(x.shape[1]))
        return self.function(x + places * mask[..., None], mask)


# With 12 positions no length that the module takes shows that it gives seven at most.
@pytest.mark.parametrize(
    ("name", "most"),
    [
        (name, most)
        for name in STEPS
        for most in (12, 1000)
        if (name, most) != ("seven at most", 12)
    ],
)
def test_sizes_in_steps_are_seen_in_a_short_first_batch(name: str, most: int) -> None:
    module = Applied(STEPS[name], most)
    short = padded([2, 3], 3)
    longer = [torch.zeros(2, 11, *part.shape[2:]) for part in short]
    for long, part in zip(longer, short, strict=True):
        long[:, :3] = part
    for given in (short, tuple(longer)):
        found = modcache.lookup_or_run(module, given, ["a", "b"], mask=1)
        assert found.shape == module(*given).shape
    for lengths, longest in (([6, 11], 11), ([5, 10, 7], 10), ([6, 5], 11)):
        given = padded(lengths, longest)
        found = modcache.lookup_or_run(module, given, lengths, mask=1)
        torch.testing.assert_close(found, module(*given))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.more = nn.Embedding(50, 4), nn.Embedding(64, 4)

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        types: torch.Tensor,
        decoder_ids: torch.Tensor,
        decoder_mask: torch.Tensor,
        decoder_places: torch.Tensor,
    ) -> torch.Tensor:
        hidden = (self.tokens(ids) + self.more(types)) * mask[..., None]
        decoded = self.tokens(decoder_ids) + self.more(decoder_places)
        return decoded * decoder_mask[..., None] + hidden.sum(1)[:, None]


def test_tensors_that_are_padded_for_themselves_are_found_among_five() -> None:
    module = EncoderDecoder().requires_grad_(False).eval()
    longest = 12
    for batch, (ours, theirs) in enumerate((([6, 9, 12], [5, 8, 12]), ([6, 8, 9], [6, 12, 12]))):
        mask = (torch.arange(longest) < torch.tensor(ours)[:, None]).long()
        other = (torch.arange(longest) < torch.tensor(theirs)[:, None]).long()
        ids = torch.randint(1, 50, (3, longest))
        given = (ids * mask, mask, mask, ids * other, other, torch.arange(longest) * other)
        keys = [f"{batch} {row}" for row in range(3)]
        found = modcache.lookup_or_run(module, given, keys, mask=1)
        torch.testing.assert_close(found, module(*given))
    assert modcache.stats()["stored"] == 0


def test_more_padded_tensors_than_can_be_told_apart_are_not_cached(capfd: Any) -> None:
    module = Summed()
    x, mask = padded([2, 4], 4)
    given = (mask, *([x] * 9))
    assert torch.equal(modcache.lookup_or_run(module, given, [0, 1], mask=0), module(*given))
    modcache.flush()
    assert "more tensors than 8" in capfd.readouterr().err


class Summed(nn.Module):
    def forward(self, mask: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        return torch.stack(parts).sum(0) * mask[..., None]


def test_three_batches_of_single_tokens_decide_nothing() -> None:
    class Pooled(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
            return x * mask[..., None], (x * mask[..., None]).sum(1)

    module = Pooled()
    for row in range(3):
        modcache.lookup_or_run(module, padded([1], 2), [row], mask=1)
    modcache.lookup_or_run(module, padded([2, 6], 6), [10, 11], mask=1)
    assert modcache.stats()["stored"] >= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_numbers_are_compared_by_their_own_size(dtype: torch.dtype) -> None:
    class LooksAhead(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            following = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)
            return ((x + following) * 0.0004).to(dtype)

    x, mask = torch.rand(1, 900, 3), torch.zeros(1, 900)
    mask[:, :600] = 1
    x[:, 600:] = 1
    modcache.lookup_or_run(LooksAhead(), (x, mask), ["a"], mask=1)
    assert modcache.stats()["stored"] == 0
