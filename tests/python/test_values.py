# SPDX-License-Identifier: Apache-2.0
"""Values, dtype and shape of a result are kept bit for bit, in memory and on disk."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from torch import nn

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip
if hasattr(torch, "bcomplex32"):  # from 2.14 on
    DTYPES.append(torch.bcomplex32)


class Gives(nn.Module):
    """Gives what it was made with."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)

    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def random_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def check_in_all_tiers(value: torch.Tensor, reopen: Any) -> None:
    module = Gives(value)
    x = torch.zeros(1)
    assert same_bits(modcache.lookup_or_run(module, x, "k", scope="s"), value)
    assert same_bits(modcache.lookup_or_run(module, x, "k", scope="s"), value)
    reopen()
    assert same_bits(modcache.lookup_or_run(module, x, "k", scope="s"), value)
    stats = modcache.stats()
    assert (stats["misses"], stats["hits_memory"], stats["hits_disk"]) == (1, 1, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (3, 5)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...], reopen: Any) -> None:
    check_in_all_tiers(random_bits(dtype, shape), reopen)


NON_CONTIGUOUS = {
    "transposed": lambda: torch.randn(3, 5).t(),
    "sliced": lambda: torch.randn(7, 6)[1::2, ::3],
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "channels last": lambda: torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "a window of a large storage": lambda: torch.randn(1000, 1000)[500],
}


@pytest.mark.parametrize("name", NON_CONTIGUOUS)
def test_non_contiguous_results(name: str, reopen: Any) -> None:
    check_in_all_tiers(NON_CONTIGUOUS[name](), reopen)


def test_special_floats(reopen: Any) -> None:
    check_in_all_tiers(torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]), reopen)


@pytest.mark.parametrize("count", [63, 64, 65, 300_000])
def test_sizes_around_the_alignment(count: int, reopen: Any) -> None:
    check_in_all_tiers(torch.randn(count), reopen)


def test_many_dimensions(reopen: Any) -> None:
    check_in_all_tiers(torch.randn([1] * 20 + [3]), reopen)


class SubTensor(torch.Tensor):
    pass


PASSING_THROUGH = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.ones(3, device="meta"),
    "subclass": lambda: torch.ones(3).as_subclass(SubTensor),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PASSING_THROUGH)
def test_other_results_pass_through(name: str, counted: Any, monkeypatch: Any) -> None:
    value = PASSING_THROUGH[name]()
    module = Gives(torch.zeros(1))
    monkeypatch.setattr(Gives, "forward", lambda self, x: value)
    for _ in range(2):
        result = modcache.lookup_or_run(module, torch.zeros(1), "k", scope="s")
        assert type(result) is type(value)
        assert result.layout == value.layout
    assert bypassed(counted()) == {"bypassed_type": 2}


@pytest.mark.parametrize("dtype", [torch.int4, torch.uint1], ids=str)
def test_integers_that_torch_cannot_copy_are_kept(dtype: torch.dtype, reopen: Any) -> None:
    check_in_all_tiers(torch.arange(8, dtype=torch.uint8).view(dtype), reopen)


@pytest.mark.parametrize("form", [lambda m: m, torch.jit.script], ids=["eager", "scripted"])
@pytest.mark.parametrize("name", ["sparse", "subclass", "meta"])
def test_other_inputs_pass_through(name: str, form: Any, counted: Any) -> None:
    value = PASSING_THROUGH[name]()
    for _ in range(2):
        result = modcache.lookup_or_run(form(nn.ReLU()), value, "k", scope="s")
        assert type(result) is type(value)
    assert bypassed(counted()) == {"bypassed_type": 2}


class GivesPair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_result_that_is_no_tensor_is_an_error_that_says_so(mode: str) -> None:
    modcache.set_mode(mode)
    with pytest.raises(RuntimeError, match="lookup_or_run_any"):
        torch.ops.cache.lookup_or_run(torch.jit.script(GivesPair()), torch.zeros(1), "k")


class TakesAll(nn.Module):
    def forward(self, x: Any, y: Any = None, z: Any = 2) -> torch.Tensor:
        first = x["a"][0] if isinstance(x, dict) else x[0] if isinstance(x, list) else x
        return first * z + (0 if y is None else y)


@pytest.mark.parametrize(
    "input",
    [
        torch.ones(2),
        (torch.ones(2),),
        (torch.ones(2), torch.ones(2)),
        (torch.ones(2), None, 3),
        [torch.ones(2), torch.zeros(2)],
        {"a": [torch.ones(2)]},
        ([torch.ones(2)], torch.ones(2), 1.5),
    ],
    ids=str,
)
def test_what_an_input_may_be(input: Any, counted: Any) -> None:
    module = TakesAll()
    expected = module(*input) if isinstance(input, tuple) else module(input)
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, input, "k"), expected)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
