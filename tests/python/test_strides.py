# SPDX-License-Identifier: Apache-2.0
"""A hit has the strides that the module's result had: kernels choose by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from torch import nn

B, C, H, W = 4, 3, 5, 6
KEYS = ["a", "b", "c", "d"]


class Laid(nn.Module):
    """Returns its input in another order of dimensions, as convolutions and attention do."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = list(order)
        self.inverse = [order.index(i) for i in range(len(order))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).permute(self.order).contiguous().permute(self.inverse)


ORDERS = {
    "row-major": (0, 1, 2, 3),
    "channels-last": (0, 2, 3, 1),
    "transposed": (0, 1, 3, 2),
    "batch-second": (1, 0, 2, 3),
    "batch-last": (3, 2, 1, 0),
}


@pytest.fixture(params=ORDERS)
def laid(request: Any) -> Laid:
    return Laid(ORDERS[request.param]).eval()


@pytest.fixture(params=["memory", "disk"])
def look_up(request: Any) -> Callable[..., Any]:
    """Looks up, and leaves the result in one tier."""
    if request.param == "disk":
        modcache.configure(memory="0")

    def look_up(*args: Any) -> Any:
        result = modcache.lookup_or_run(*args)
        modcache.flush()
        return result

    return look_up


def image(rows: int = B) -> torch.Tensor:
    return torch.arange(rows * C * H * W, dtype=torch.float32).view(rows, C, H, W)


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_a_whole_result_keeps_its_strides(laid: Laid, look_up: Any, form: str) -> None:
    module = torch.jit.script(laid) if form == "scripted" else laid
    plain = laid(image())
    first = look_up(module, image(), "k")
    again = look_up(module, image(), "k")
    assert modcache.stats()["misses"] == 1
    assert first.stride() == again.stride() == plain.stride()
    assert torch.equal(again, plain)


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_rows_keep_the_order_of_dimensions(laid: Laid, look_up: Any, form: str) -> None:
    module = torch.jit.script(laid) if form == "scripted" else laid
    x = image()
    plain = laid(x)
    first = look_up(module, x[:2], KEYS[:2])
    mixed = look_up(module, x, KEYS)
    hits = look_up(module, x, KEYS)
    turned = look_up(module, x.flip(0), KEYS[::-1])
    assert modcache.stats()["misses"] == B
    assert first.stride() == laid(x[:2]).stride()
    for batch in (mixed, hits, turned):
        assert batch.stride() == plain.stride()
    assert torch.equal(mixed, plain)
    assert torch.equal(hits, plain)
    assert torch.equal(turned, plain.flip(0))


def test_structured_results_keep_the_strides_of_each_tensor() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"last": x.contiguous(memory_format=torch.channels_last), "t": x.transpose(1, 2)}

    for _ in range(2):
        whole = modcache.lookup_or_run(Two(), image(), "k")
        rows = modcache.lookup_or_run(Two(), image(), KEYS)
        for result in (whole, rows):
            assert result["last"].is_contiguous(memory_format=torch.channels_last)
            assert result["t"].stride() == image().transpose(1, 2).stride()
    assert modcache.stats()["misses"] == 1 + B


def test_a_convolution_in_channels_last_trains_a_head_to_the_same_bits() -> None:
    torch.manual_seed(0)
    encoder = nn.Conv2d(C, 8, 3, padding=1).to(memory_format=torch.channels_last)
    encoder.requires_grad_(False)
    head = nn.Conv2d(8, 4, 3)
    x = image().contiguous(memory_format=torch.channels_last)
    plain = encoder(x)
    modcache.lookup_or_run(encoder, x, KEYS)
    hit = modcache.lookup_or_run(encoder, x, KEYS)
    assert plain.is_contiguous(memory_format=torch.channels_last)
    assert hit.stride() == plain.stride()
    assert torch.equal(head(hit), head(plain))


def test_rows_of_a_partly_missing_batch_are_run_in_the_order_of_the_batch() -> None:
    seen: list[bool] = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return x + 1

    x = image().contiguous(memory_format=torch.channels_last)
    module = Looks()
    modcache.lookup_or_run(module, x[:1], KEYS[:1], scope="s")
    modcache.lookup_or_run(module, x, KEYS, scope="s")
    assert seen == [True, True]


def test_results_with_gaps_come_back_row_major() -> None:
    class Gaps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :, ::2, ::2].transpose(1, 2)

    modcache.lookup_or_run(Gaps(), image(), "k")
    assert modcache.lookup_or_run(Gaps(), image(), "k").is_contiguous()


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_narrowed_results_keep_their_strides(narrow: str, laid: Laid) -> None:
    modcache.configure(dtype=narrow)
    plain = laid(image())
    for _ in range(2):
        assert modcache.lookup_or_run(laid, image(), "k").stride() == plain.stride()
        assert modcache.lookup_or_run(laid, image(), KEYS).stride() == plain.stride()


def test_exported_programs_give_the_strides_of_their_trace(laid: Laid) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = laid

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.encoder, x, ids, scope="s")

    ids = torch.arange(B)
    eager = modcache.lookup_or_run(laid, image(), ids, scope="s")
    program = torch.export.export(Model(), (image(), ids)).module()
    some = torch.tensor([0, 1, 2, 9])
    for given in (ids, some, ids + 100):  # all found, some found, none found
        result = program(image(), given)
        assert result.is_contiguous()
        assert torch.equal(result, eager)
