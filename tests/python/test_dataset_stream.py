# SPDX-License-Identifier: Apache-2.0
"""CachedIterableDataset: a stream is read, and decoded only where the cache lacks a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import modcache
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Growth = Callable[[], dict[str, int]]


class Shards(IterableDataset[Any]):
    """As WebDataset: a worker reads every n-th sample."""

    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, self.size, step):
            yield {"__key__": f"shard-0/{index:03}", "txt": str(index).encode(), "cls": index}


RUNS: list[str] = []


class Decoder:
    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def __call__(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        note(sample["__key__"])
        return torch.full((2,), self.factor * float(sample["txt"])), sample["cls"]


def note(key: str) -> None:
    RUNS.append(key)


@pytest.fixture(autouse=True)
def no_runs() -> None:
    RUNS.clear()


def labels(stream: Any) -> list[int]:
    return [label for _, label in stream]


def test_each_sample_is_decoded_once_in_order(counted: Growth) -> None:
    stream = modcache.CachedIterableDataset(Shards(), Decoder(), look_ahead=4, scope="s")
    first = list(stream)
    assert [label for _, label in first] == list(range(10))
    assert counted() == {"misses": 10, "stored": 10}
    again = list(stream)
    assert counted() == {"hits_memory": 10}
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert len(RUNS) == 10
    assert modcache.contains("s", "shard-0/003")


def test_what_is_missing_is_decoded_and_nothing_else() -> None:
    labels(modcache.CachedIterableDataset(Shards(4), Decoder(), scope="s"))
    RUNS.clear()
    assert labels(modcache.CachedIterableDataset(Shards(6), Decoder(), scope="s")) == list(range(6))
    assert RUNS == ["shard-0/004", "shard-0/005"]


def pure(sample: dict[str, Any]) -> int:
    return int(sample["cls"]) * 2


def test_the_scope_covers_stream_and_transform() -> None:
    def scope(stream: Any, transform: Any) -> str:
        return modcache.CachedIterableDataset(stream, transform).scope

    one = scope(Shards(), pure)
    assert one == scope(Shards(), pure)
    assert one != scope(Shards(9), pure)
    assert one != scope(Shards(), lambda sample: int(sample["cls"]))


def test_a_generator_has_no_scope_until_it_is_given_one() -> None:
    raw = ({"__key__": str(i), "cls": i} for i in range(3))
    with pytest.raises(TypeError, match=r"no scope can be made, since .*scope="):
        modcache.CachedIterableDataset(raw, pure)
    assert list(modcache.CachedIterableDataset(raw, pure, scope="s")) == [0, 2, 4]


def test_keys_are_a_field_or_a_function() -> None:
    by_field = modcache.CachedIterableDataset(Shards(2), pure, key="cls", scope="f")
    assert list(by_field) == [0, 2]
    assert modcache.contains("f", "1")
    by_function = modcache.CachedIterableDataset([3, 4], str, key=lambda n: n + 1, scope="g")
    assert list(by_function) == ["3", "4"]
    assert modcache.contains("g", "5")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"txt": b""}, r"has no key '__key__' .* fields \['txt'\].*Pass key="),
        ((1, 2), r"has no key '__key__' .* tuple"),
        ({"__key__": 1.5}, r"has no key '__key__' of type str or int"),
    ],
)
def test_a_sample_without_its_key_is_an_error(raw: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        list(modcache.CachedIterableDataset([raw], pure, scope="s"))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"transform": 3}, TypeError, "transform must be a function"),
        ({"look_ahead": 0}, ValueError, "^CachedIterableDataset: look_ahead must be at least 1"),
        ({"variants": 0}, ValueError, "^CachedIterableDataset: variants must be at least 1"),
    ],
)
def test_mistakes(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        modcache.CachedIterableDataset(Shards(), **{"transform": pure, **options})


def test_the_library_names_who_asked() -> None:
    who = "CachedIterableDataset(list)"
    with pytest.raises(RuntimeError, match=r"^CachedIterableDataset\(list\): a key comes twice"):
        torch.classes.cache.Samples.look_up("s", who, ["a", "a"])


def noisy(sample: dict[str, Any]) -> tuple[int, float]:
    return sample["cls"], float(torch.rand(()))


@pytest.mark.parametrize("tells", [True, False])
def test_variants_take_turns_whatever_the_workers(tells: bool) -> None:
    def passes(workers: int) -> list[list[Any]]:
        modcache.clear()
        stream = modcache.CachedIterableDataset(Shards(), noisy, variants=2)
        loader = DataLoader(stream, batch_size=2, num_workers=workers, collate_fn=list)
        given = []
        for epoch in range(3):
            if tells:
                stream.set_epoch(epoch)
            given.append(sorted(sample for batch in loader for sample in batch))
        return given

    expected = passes(0)
    assert expected[0] == expected[2] != expected[1]
    assert passes(2) == expected


def test_a_pass_leaves_the_global_random_state_alone() -> None:
    stream = modcache.CachedIterableDataset(Shards(), noisy)
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        list(stream)
        states.append(float(torch.rand(())))
    assert states[0] == states[1]


def test_a_stream_may_fill_one_dict_and_a_transform_one_buffer() -> None:
    class Refilled:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            sample: dict[str, Any] = {}
            for index in range(4):
                sample.update({"__key__": str(index), "txt": index})
                yield sample

    buffer = torch.zeros(2)
    stream = modcache.CachedIterableDataset(
        Refilled(), lambda sample: buffer.fill_(sample["txt"]), scope="s"
    )
    for _ in range(2):
        assert [sample.tolist() for sample in stream] == [[i, i] for i in range(4)]


def test_a_dataset_that_is_no_stream_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"dataset must be an iterable of raw samples, but got int"):
        modcache.CachedIterableDataset(5, str, scope="s")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"look_ahead must be an int, but got float"):
        modcache.CachedIterableDataset([], str, scope="s", look_ahead=1.5)  # type: ignore[arg-type]
