# SPDX-License-Identifier: Apache-2.0
"""CachedDataset: indices, keys, hits that touch nothing, batches in one call, and modes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from modcache._data import lookup
from test_damage import segments_of
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)

Growth = Callable[[], dict[str, int]]


class Squares(Dataset[Any]):
    """Index and square; remembers what it was asked for."""

    def __init__(self, size: int = 8) -> None:
        self.size = size
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        self.asked.append(index)
        return torch.full((3,), float(index)) ** 2, index


def cached(size: int = 8, **options: Any) -> tuple[modcache.CachedDataset[Any], list[Any]]:
    squares = Squares(size)
    return modcache.CachedDataset(squares, **options), squares.asked


def is_square(sample: Any, index: int) -> bool:
    return sample[1] == index and torch.equal(sample[0], torch.full((3,), float(index)) ** 2)


def test_a_hit_equals_the_miss_and_does_not_touch_the_dataset(
    counted: Growth, reopen: Callable[[], None]
) -> None:
    dataset, asked = cached()
    assert is_square(dataset[3], 3)
    assert counted() == {"misses": 1, "stored": 1}
    assert is_square(dataset[3], 3)
    assert counted() == {"hits_memory": 1}
    reopen()
    assert is_square(dataset[3], 3)
    assert counted()["hits_disk"] == 1
    assert asked == [3]


def test_another_object_of_the_same_kind_shares_the_entries() -> None:
    one, _ = cached()
    other, asked = cached()
    one[2]
    assert is_square(other[2], 2)
    assert asked == []


@pytest.mark.parametrize(
    "index", [6, -2, np.int64(6), np.uint8(6), torch.tensor(6), torch.tensor(-2, dtype=torch.int8)]
)
def test_indices_of_all_types_are_one_key(index: Any) -> None:
    dataset, asked = cached()
    assert is_square(dataset[6], 6)
    assert is_square(dataset[index], 6)
    assert asked == [6]
    assert type(asked[0]) is int


def test_indices_out_of_range_and_iteration() -> None:
    dataset, _ = cached(3)
    with pytest.raises(IndexError):
        dataset[-4]
    with pytest.raises(IndexError):
        dataset[3]
    assert [sample[1] for sample in dataset] == [0, 1, 2]
    assert len(dataset) == 3


def test_an_index_of_another_type_is_an_error_that_names_the_cure() -> None:
    dataset, _ = cached()
    with pytest.raises(TypeError, match=r"an index is an int or a str, but got tuple.*key="):
        dataset[(1, 2)]


class Pairs(Dataset[Any]):
    def __getitem__(self, index: Any) -> str:
        return f"sample {index}"


def test_a_key_function_takes_any_index() -> None:
    dataset = modcache.CachedDataset(Pairs(), key=lambda pair: f"{pair[0]}/{pair[1]}")
    assert dataset[(1, 2)] == "sample (1, 2)"
    assert modcache.contains(dataset.scope, "1/2")
    assert modcache.CachedDataset(Pairs())["name"] == "sample name"


def test_a_key_function_names_the_sample(counted: Growth) -> None:
    dataset, asked = cached(key=lambda index: index // 2)
    assert [dataset[i][1] for i in (0, 1, 2)] == [0, 0, 2]
    assert asked == [0, 2]
    assert modcache.contains(dataset.scope, "1")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"key": ["a"]}, TypeError, r"key must be a function of the index, but got list"),
        ({"scope": ""}, ValueError, r"^CachedDataset\(Squares\): scope is an empty str"),
        ({"scope": 3}, TypeError, r"^CachedDataset\(Squares\): scope must be a str"),
        ({"variants": 0}, ValueError, "^CachedDataset: variants must be at least 1"),
        ({"variants": 1.5}, TypeError, "^CachedDataset: variants must be an int"),
        ({"seed": -1}, ValueError, "^CachedDataset: seed must be at least 0"),
    ],
)
def test_mistakes(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        modcache.CachedDataset(Squares(), **options)


@pytest.mark.parametrize(
    ("key", "error", "says"),
    [
        (lambda index: "", ValueError, "CachedDataset: a key is an empty str"),
        (lambda index: None, TypeError, "CachedDataset: a key must be a str or an int, but got No"),
        (lambda index: 1.5, TypeError, "a key must be a str or an int, but got float"),
        (lambda index: "\ud800", ValueError, "CachedDataset: a key must be .* lone surrogate"),
    ],
)
def test_bad_keys(key: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        modcache.CachedDataset(Squares(), key=key)[0]


def test_a_stream_is_sent_elsewhere() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter([])

    with pytest.raises(TypeError, match="CachedIterableDataset"):
        modcache.CachedDataset(Stream())  # type: ignore[arg-type]


def test_a_batch_is_one_call_and_makes_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, counted: Growth
) -> None:
    dataset, asked = cached()
    dataset.__getitems__([1, 2])
    calls = []
    look_up, keep = lookup._look_up, lookup._keep
    monkeypatch.setattr(lookup, "_look_up", lambda *a: calls.append("look") or look_up(*a))
    monkeypatch.setattr(lookup, "_keep", lambda *a: calls.append("keep") or keep(*a))
    counted()
    samples = dataset.__getitems__([5, 1, 4, 2])
    assert all(is_square(sample, i) for sample, i in zip(samples, [5, 1, 4, 2], strict=True))
    assert calls == ["look", "keep"]
    assert asked == [1, 2, 5, 4]
    assert counted() == {"hits_memory": 2, "misses": 2, "stored": 2}
    assert dataset.__getitems__([]) == []


def test_an_index_twice_in_a_batch_is_made_once_and_given_twice() -> None:
    dataset, asked = cached()
    for _ in range(2):  # made, and found
        one, other, third = dataset.__getitems__([4, 4, -4])
        assert asked == [4]
        one[0].zero_()
        assert is_square(other, 4)
        assert is_square(third, 4)


def test_what_a_caller_writes_into_a_sample_changes_no_other() -> None:
    dataset, _ = cached()
    for _ in range(3):
        sample = dataset[2][0]
        assert is_square((sample, 2), 2)
        sample.zero_()


class OneBuffer(Squares):
    """Fills the same memory for each sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        made = super().__getitem__(index)
        self.buffer = vars(self).get("buffer", torch.empty(3)).copy_(made[0])
        return self.buffer, index


def test_a_dataset_may_fill_one_buffer_again_and_again() -> None:
    dataset = modcache.CachedDataset(OneBuffer())
    for _ in range(2):
        batch = dataset.__getitems__([3, 1, 2])
        assert all(map(is_square, batch, [3, 1, 2]))


def test_iteration_ends_where_the_dataset_does_whatever_the_cache_knows() -> None:
    assert len(list(cached(6, scope="s")[0])) == 6
    assert len(list(cached(3, scope="s")[0])) == 3


def test_a_dataset_that_raises_keeps_what_was_made_before() -> None:
    dataset, asked = cached(4)
    with pytest.raises(IndexError):
        dataset.__getitems__([0, 1, 7, 2])
    dataset.__getitems__([0, 1])
    assert asked == [0, 1]


def test_off_runs_and_stores_nothing_whatever_a_sample_holds(
    cache_dir: Any, counted: Growth
) -> None:
    class Odd(Dataset[Any]):
        def __getitem__(self, index: int) -> object:
            return {1, 2}

    dataset = modcache.CachedDataset(Odd())
    with modcache.mode("off"):
        assert dataset[0] == {1, 2}
    assert counted() == {"bypassed_off": 1}
    assert not cache_dir.exists()


def test_the_modes_read_refresh_and_verify(counted: Growth) -> None:
    dataset, asked = cached()
    with modcache.mode("read"):
        dataset[0]
    assert counted() == {"misses": 1}
    dataset[0]
    assert counted() == {"misses": 1, "stored": 1}
    with modcache.mode("refresh"):
        dataset[0]
    assert counted() == {"misses": 1, "stored": 1}
    with modcache.mode("verify"):
        dataset[0]
    assert counted() == {}
    assert asked == [0, 0, 0, 0]


class Unsteady(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return torch.tensor(float(len(self.asked))), index


def test_verify_finds_a_dataset_that_changes(counted: Growth) -> None:
    dataset = modcache.CachedDataset(Unsteady())
    dataset[0]
    counted()
    with modcache.mode("verify"):
        assert dataset[0][0] == 2
    assert counted() == {"verify_differences": 1}
    assert dataset[0][0] == 1


def test_entries_are_those_of_lookup_and_store() -> None:
    dataset = modcache.CachedDataset(TensorDataset(torch.arange(4.0)), scope="numbers@1")
    assert torch.equal(dataset[2][0], torch.tensor(2.0))
    assert dataset.scope == "numbers@1"
    assert modcache.contains("numbers@1", "2")
    torch.ops.cache.store("numbers@1", "3", torch.tensor([7.0]))
    assert torch.equal(dataset[3], torch.tensor([7.0]))
    assert modcache.clear("numbers@1") == 2


def test_subset_concat_and_split_over_and_under_it() -> None:
    squares = Squares()
    over = Subset(modcache.CachedDataset(squares), [3, 5])
    loader = DataLoader(over, batch_size=2)
    for _ in range(2):
        assert [labels.tolist() for _, labels in loader] == [[3, 5]]
    assert squares.asked == [3, 5]

    under = modcache.CachedDataset(Subset(Squares(), [3, 5]))
    assert [under[i][1] for i in (0, 1, 0)] == [3, 5, 3]
    assert modcache.CachedDataset(Subset(Squares(), [5, 3]))[0][1] == 5

    both = ConcatDataset([modcache.CachedDataset(Squares(2)), modcache.CachedDataset(Squares(3))])
    for _ in range(2):
        assert [sample[1] for sample in both] == [0, 1, 0, 1, 2]

    halves = random_split(modcache.CachedDataset(Squares()), [4, 4])
    assert sorted(sample[1] for half in halves for sample in half) == list(range(8))


def test_attributes_and_text() -> None:
    dataset, _ = cached(5)
    assert dataset.dataset.size == 5  # type: ignore[attr-defined]
    assert repr(dataset).startswith("CachedDataset(<")


def test_copies_and_pickles_find_the_same_entries() -> None:
    dataset, _ = cached()
    dataset[1]
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        asked = other.dataset.asked
        asked.clear()
        # `asked` is an attribute like any other, and was changed from outside.
        fresh = modcache.CachedDataset(Squares())
        assert other.scope == fresh.scope
        assert is_square(other[1], 1)
        assert asked == []


def test_a_pickle_from_a_file_does_not_change_the_settings() -> None:
    data = pickle.dumps(cached()[0])
    modcache.configure(memory="3MB")
    pickle.loads(data)
    assert modcache.settings()["memory"] == str(3 * 10**6)


def test_min_run_us_keeps_quick_samples_out(counted: Growth) -> None:
    modcache.configure(min_run_us=10_000_000)
    dataset, asked = cached()
    dataset[0]
    dataset[0]
    assert asked == [0, 0]
    assert counted() == {"misses": 2}


def test_narrowed_floats_come_back_in_their_dtype() -> None:
    modcache.configure(dtype="float16")
    dataset, _ = cached()
    dataset[3]
    again = dataset[3][0]
    assert again.dtype == torch.float32
    assert torch.equal(again, torch.full((3,), 9.0))


def test_a_codec_gives_the_same(reopen: Callable[[], None]) -> None:
    modcache.configure(codec="zstd")
    dataset = modcache.CachedDataset(
        TensorDataset(torch.arange(4096.0).reshape(2, 2048), torch.arange(2)), scope="c"
    )
    dataset[1]
    reopen()
    first, second = dataset[1]
    assert torch.equal(first, torch.arange(2048.0, 4096.0))
    assert second == 1


def test_a_broken_sample_is_made_anew(cache_dir: Any, reopen: Callable[[], None]) -> None:
    dataset, asked = cached(size=2)
    dataset.__getitems__([0, 1])
    reopen()
    (segment,) = segments_of(cache_dir)
    data = bytearray(segment.read_bytes())
    at = data.index(np.full(3, 1.0, dtype=np.float32).tobytes())
    data[at] ^= 1
    segment.write_bytes(data)
    samples = dataset.__getitems__([0, 1])
    assert all(is_square(sample, i) for i, sample in enumerate(samples))
    assert asked == [0, 1, 1]
    assert modcache.stats()["corrupt"] == 1
