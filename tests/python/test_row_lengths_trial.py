# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length: what one more run of a row shows of padding, and what is never kept."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
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


class LongestSeen(nn.Module):
    """Scales its positions by the longest input so far, as models with dynamic rotary tables do."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 10
        self.register_buffer("table", torch.arange(10.0))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.longest:
            self.longest = x.shape[1]
            self.table = torch.arange(float(self.longest)) * (10 / self.longest)
        return (x + self.table[None, : x.shape[1], None]) * mask[..., None]


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_a_trial_leaves_nothing_behind_in_the_module(form: str) -> None:
    plain, module = LongestSeen(), LongestSeen()
    if form == "scripted":
        module = torch.jit.script(module)
    x, mask = torch.ones(2, 8, 3), torch.ones(2, 8)
    mask[0, 4:] = 0
    for keys in ([0, 1], [2, 3]):
        found = modcache.lookup_or_run(module, (x, mask), keys, mask=1)
        assert torch.equal(found, plain(x, mask))
        assert (module.longest, len(module.table)) == (10, 10)
    longer = torch.ones(2, 12, 3), torch.ones(2, 12)
    assert torch.equal(modcache.lookup_or_run(module, longer, [4, 5], mask=1), plain(*longer))
    assert module.longest == 12, "what the call itself did is kept"


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
