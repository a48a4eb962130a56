# SPDX-License-Identifier: Apache-2.0
"""CachedDataset of padded samples: entries are short, and samples come back bit by bit."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import modcache
import numpy as np
import pytest
import torch
from made_samples import Made
from modcache._call.tagged import UnknownClassError, untagged
from modcache._data.padding import padding_of, restored
from modcache._data.values import packed
from torch.utils.data import DataLoader, Dataset

SIZE = 64


class Texts(Dataset[Any]):
    """Token ids, as tokenizers pad them."""

    def __init__(self, size: int = SIZE, count: int = 12) -> None:
        self.size = size
        self.count = count
        self.runs = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.runs += 1
        return text(20 + index, self.size)


class Unpadded(Texts):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return text(20 + index, 20 + index)


class Labelled(NamedTuple):
    tokens: torch.Tensor
    mask: torch.Tensor


def row(values: Any, size: int, pad: Any = 0) -> torch.Tensor:
    values = torch.as_tensor(values)
    padded = torch.full((size, *values.shape[1:]), pad, dtype=values.dtype)
    padded[: len(values)] = values
    return padded


def text(length: int, size: int = SIZE) -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 5 + length)
    return {
        "input_ids": row(ids, size, 1),
        "attention_mask": row(torch.ones_like(ids), size),
        "labels": row(ids, size, -100),
    }


def mask(length: int) -> torch.Tensor:
    return row(torch.ones(length), SIZE)


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype, strides and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        is_like = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return is_like and bits(a) == bits(b)
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, collections.abc.Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def bits(tensor: torch.Tensor) -> list[int]:
    found: list[int] = tensor.contiguous().unsqueeze(-1).view(torch.uint8).flatten().tolist()
    return found


def bytes_on_disk(dataset: Any, directory: Path) -> int:
    """What the entries of all samples take, without the index, whose files grow in steps."""
    modcache.configure(dir=directory)
    for index in range(len(dataset)):
        dataset[index]
    modcache.flush()
    return sum(file.stat().st_size for file in directory.rglob("*.seg"))


def of(make: Callable[[], Any], item: str | int, *, lengths: bool = False) -> Any:
    """Returns a sample as it is stored."""
    padding = padding_of("test", None, item) if lengths else padding_of("test", item, None)
    assert padding is not None
    sample = make()
    return padding.trimmed(packed(sample), sample)


def numbers_in(value: Any) -> int:
    """How many elements of tensors and lists a stored sample has."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if type(value) is not tuple:
        return 1
    return sum(map(numbers_in, value[-1]))


SAMPLES: dict[str, tuple[Callable[[], Any], str | int]] = {
    "short": (lambda: text(5), "attention_mask"),
    "of one token": (lambda: text(1), "attention_mask"),
    "full": (lambda: text(SIZE), "attention_mask"),
    "one short of full": (lambda: text(SIZE - 1), "attention_mask"),
    "all padding": (lambda: text(0), "attention_mask"),
    "on the left": (lambda: {k: v.flip(0) for k, v in text(5).items()}, "attention_mask"),
    "on both sides": (lambda: (torch.roll(mask(5), 7), torch.roll(row([3] * 5, SIZE), 7)), 0),
    "a mask with holes": (lambda: (row([1, 0, 1, 0, 0, 1], SIZE), row(range(1, 7), SIZE)), 0),
    "a mask of one row": (
        lambda: {k: v.unsqueeze(0) for k, v in text(5).items()},
        "attention_mask",
    ),
    "lists": (lambda: {k: v.tolist() for k, v in text(5).items()}, "attention_mask"),
    "a list of booleans among integers": (
        lambda: ([1] * 4 + [0] * 60, [3] * 4 + [0] * 30 + [False] * 30, [True] * 4 + [False] * 60),
        0,
    ),
    "arrays": (lambda: {k: v.numpy() for k, v in text(5).items()}, "attention_mask"),
    "a tuple": (lambda: (row([1, 2], SIZE), 7, mask(2)), 2),
    "a named tuple": (lambda: Labelled(row([1, 2], SIZE), mask(2)), "mask"),
    "a UserDict": (lambda: collections.UserDict(text(9)), "attention_mask"),
    "an ordered dict": (lambda: collections.OrderedDict(text(9)), "attention_mask"),
    "a pair": (lambda: (text(9), text(3), "label"), "attention_mask"),
    "two dimensions": (lambda: (mask(6), mask(6).outer(mask(6)), mask(6).outer(mask(64))), 0),
    "features": (lambda: (mask(6), row(torch.rand(6, 3), SIZE)), 0),
    "transposed features": (lambda: (mask(6), row(torch.rand(6, 3), SIZE).t()), 0),
    "a width of the same size": (lambda: (mask(6), torch.rand(SIZE, SIZE)), 0),
    "no number": (lambda: (mask(6), row([float("nan")] * 6, SIZE, float("nan"))), 0),
    "both zeros": (lambda: (mask(6), torch.tensor([0.0] * 40 + [-0.0] * 24)), 0),
    "a tail that differs": (lambda: (mask(6), row(range(9), SIZE)), 0),
    "no elements": (lambda: (mask(6), torch.empty(SIZE, 0), torch.empty(0)), 0),
    "a tensor with shared elements": (lambda: (mask(6), torch.ones(1).expand(SIZE)), 0),
    "no mask in this sample": (lambda: {"ids": row([1], SIZE), "mask": None}, "mask"),
    "an empty mask": (lambda: {"ids": torch.ones(3), "mask": torch.ones(0)}, "mask"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_comes_back_bit_by_bit(name: str, reopen: Callable[[], None]) -> None:
    make, item = SAMPLES[name]
    made = Made(make)
    dataset = modcache.CachedDataset(made, scope=name, mask=item)
    expected = modcache.CachedDataset(Made(make), scope=f"{name}, as it is")[0]
    assert same(dataset[0], expected)
    assert same(dataset[0], expected)
    reopen()
    assert same(dataset[0], expected)
    assert made.runs == 1


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32),
        *(torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32),
        *(torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn),
    ],
)
def test_tensors_of_every_dtype_are_cut(dtype: torch.dtype) -> None:
    def make() -> Any:
        return row([1.0, 0.0, 1.0], SIZE).to(dtype), mask(3)

    stored = of(make, 1)
    assert numbers_in(stored) == 2 * (3 + 1)
    assert same(untagged(restored(stored)), make())


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("short", 3 * (5 + 1)),
        ("all padding", 3),
        ("on the left", 3 * (5 + 1)),
        ("on both sides", 2 * (5 + 2)),
        ("lists", 3 * (5 + 1)),
        ("a pair", 3 * (9 + 1) + 3 * (3 + 1) + 1),
        ("two dimensions", 7 + 7 * 7 + 7 * 7),
        ("features", 7 + 7 * 3),
        ("transposed features", 7 + 7 * 3),
        ("both zeros", 7 + 64),
        ("a tail that differs", 7 + 64),
    ],
)
def test_what_is_stored_is_the_true_part_and_one_slice_of_padding(name: str, numbers: int) -> None:
    assert numbers_in(of(*SAMPLES[name])) == numbers


def test_entries_are_as_large_as_those_of_samples_without_padding(tmp_path: Path) -> None:
    true = bytes_on_disk(modcache.CachedDataset(Unpadded(count=50)), tmp_path / "true")
    padded = bytes_on_disk(modcache.CachedDataset(Texts(512, 50)), tmp_path / "padded")
    short = modcache.CachedDataset(Texts(512, 50), mask="attention_mask")
    assert padded > 5 * true > 0
    assert bytes_on_disk(short, tmp_path / "short") <= 1.1 * true


def test_lengths_say_the_same() -> None:
    def make() -> Any:
        return {"audio": row(torch.rand(7), 200), "features": row(torch.rand(7, 3), 50), "size": 7}

    stored = of(make, "size", lengths=True)
    assert numbers_in(stored) == (7 + 1) + 3 * (7 + 1) + 1
    made = Made(lambda: {"ids": row([4, 5], SIZE), "size": np.int64(2)})
    dataset = modcache.CachedDataset(made, scope="s", lengths="size")
    assert same(dataset[0], dataset[0])
    assert same(dataset[0]["ids"], row([4, 5], SIZE))


def test_entries_with_and_without_padding_are_read_by_both() -> None:
    texts = Texts()
    plain = modcache.CachedDataset(texts, scope="s")
    short = modcache.CachedDataset(texts, scope="s", mask="attention_mask")
    assert same(plain[0], short[0])
    assert same(short[1], plain[1])
    assert texts.runs == 2


def test_a_version_that_does_not_know_them_makes_the_sample() -> None:
    stored = of(lambda: text(5), "attention_mask")
    with pytest.raises(UnknownClassError):
        untagged(stored)


@pytest.mark.parametrize(
    "context", ["", "[0]", "[[[[],[[0,-1,3]]],[0]]]", "[[[[],[[5,1,3]]],[0]]]"]
)
def test_what_no_version_wrote_costs_a_run_and_not_an_error(context: str) -> None:
    tag, name, _, parts = of(lambda: text(5), "attention_mask")
    with pytest.raises(UnknownClassError):
        restored((tag, name, context, parts))


def test_the_caller_may_write_into_a_sample() -> None:
    dataset = modcache.CachedDataset(Texts(), mask="attention_mask")
    for _ in range(2):
        sample = dataset[0]
        assert same(sample, text(20))
        sample["input_ids"][:] = 9


def test_inference_mode_gives_no_inference_tensors() -> None:
    dataset = modcache.CachedDataset(Texts(), mask="attention_mask")
    with torch.inference_mode():
        found = [dataset[0], dataset[0]]
    assert not any(tensor.is_inference() for sample in found for tensor in sample.values())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_store_and_find_them(context: str, counted: Callable[[], dict[str, int]]) -> None:
    texts = Texts()
    dataset = modcache.CachedDataset(texts, mask="attention_mask")
    loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context=context)
    plain = list(DataLoader(texts, 4))
    texts.runs = 0
    for _ in range(2):
        assert all(map(same, loader, plain))
    counted()
    assert [same(dataset[i], text(20 + i)) for i in range(12)] == [True] * 12
    assert texts.runs == 0


def test_a_stream_of_padded_samples() -> None:
    raw = [{"__key__": str(i), "length": i} for i in (3, 5)]
    runs = []

    def decoded(sample: Any) -> Any:
        runs.append(sample["__key__"])
        return text(sample["length"])

    stream = modcache.CachedIterableDataset(raw, decoded, scope="s", mask="attention_mask")
    assert same(list(stream), list(stream))
    assert same(list(stream), [text(3), text(5)])
    assert runs == ["3", "5"]
    expected = of(lambda: text(3), "attention_mask")
    assert numbers_in(expected) == 3 * 4


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"mask": "a", "lengths": "b"}, ValueError, "give one of them"),
        ({"mask": -1}, TypeError, "mask must be the name of an item"),
        ({"lengths": True}, TypeError, "lengths must be the name of an item"),
        ({"mask": torch.ones(3)}, TypeError, "mask must be the name of an item"),
    ],
)
def test_mistakes(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        modcache.CachedDataset(Texts(), **options)
    with pytest.raises(error, match=says):
        modcache.CachedIterableDataset([], text, scope="s", **options)


@pytest.mark.parametrize(
    ("sample", "options", "says"),
    [
        ({"a": 1, "b": 2}, {"mask": "c"}, r"CachedDataset\(Made\): mask='c': .*\['a', 'b'\]"),
        ((1, 2), {"lengths": 2}, "lengths=2: the sample is a tuple with no such item"),
        (3, {"mask": 0}, "the sample is a int with no such item"),
        ("text", {"mask": "t"}, "the sample is a str with no such item"),
        ({"a": "text"}, {"mask": "a"}, "the item must be a tensor, array or list"),
        ({"a": 1}, {"mask": "a"}, "the item must be a tensor, array or list"),
        ({"a": 1.5}, {"lengths": "a"}, "the item must be an integer of 0 or more, but is a float"),
        ({"a": -1}, {"lengths": "a"}, "the item must be an integer of 0 or more, but is a int"),
    ],
)
def test_a_sample_without_such_an_item_is_an_error(sample: Any, options: Any, says: str) -> None:
    dataset = modcache.CachedDataset(Made(lambda: sample), scope="s", **options)
    with pytest.raises(TypeError, match=says):
        dataset[0]
