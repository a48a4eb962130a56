# SPDX-License-Identifier: Apache-2.0
"""Who makes samples: what gives another scope, what does not, and what has none."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import modcache
import numpy as np
import pytest
import torch
from modcache._data.scope import SampleMaker
from processes import ProcessRunner
from torch.utils.data import Dataset, Subset, TensorDataset


def half(x: float) -> float:
    return x / 2


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: float) -> float:
        return x * self.factor


class Compose:
    def __init__(self, steps: list[Callable[[float], float]]) -> None:
        self.steps = steps

    def __call__(self, x: float) -> float:
        for step in self.steps:
            x = step(x)
        return x


class Numbers(Dataset[float]):
    def __init__(self, root: str = "data", transform: Any = None, **others: Any) -> None:
        self.root = root
        self.transform = transform
        self.others = others
        self.opened: Any = None
        self.runs = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        self.runs += 1
        self.opened = threading.Lock()  # as a file that is opened when it is first needed
        return self.transform(float(index)) if self.transform else float(index)


def scope_of(dataset: Any) -> str:
    return modcache.CachedDataset(dataset).scope


def test_datasets_that_are_alike_have_one_scope() -> None:
    assert scope_of(Numbers()) == scope_of(Numbers())
    steps = [Scale(2), half]
    assert scope_of(Numbers(transform=Compose(steps))) == scope_of(
        Numbers(transform=Compose([Scale(2), half]))
    )


@pytest.mark.parametrize(
    "other",
    [
        Numbers(root="elsewhere"),
        Numbers(transform=half),
        Numbers(transform=Scale(2.0)),
        Numbers(transform=Scale(3.0)),
        Numbers(transform=Compose([Scale(2.0), half])),
        Numbers(transform=Compose([half, Scale(2.0)])),
        Numbers(transform=functools.partial(half)),
        Numbers(mean=np.array([0.5])),
        Numbers(mean=np.array([0.25])),
        Numbers(table=np.arange(100_000)),
        Numbers(weights=torch.ones(2)),
        Numbers(paths=[f"{i}.jpg" for i in range(2000)]),
        Numbers(paths=[(f"{i}.jpg", i) for i in range(2000)]),
        Subset(Numbers(), [0, 1]),
        Subset(Numbers(), list(range(1000))),
        TensorDataset(torch.arange(4.0)),
    ],
)
def test_what_differs_gives_another_scope(other: Any) -> None:
    scope = scope_of(other)
    assert scope not in SCOPES
    SCOPES.append(scope)


SCOPES: list[str] = [scope_of(Numbers())]


def test_the_code_counts() -> None:
    def with_code(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "own", "Numbers": Numbers, "half": half}
        exec(f"class Own(Numbers):\n    def __getitem__(self, index):\n        {text}\n", names)
        return names["Own"]()

    one = scope_of(with_code("return half(index)"))
    assert one == scope_of(with_code("return half(index)"))
    assert one != scope_of(with_code("return half(index) + 1"))


def test_a_change_from_outside_is_seen_by_the_next_call() -> None:
    numbers = Numbers(transform=Scale(2.0))
    dataset = modcache.CachedDataset(numbers)
    assert dataset[3] == 6.0
    numbers.transform.factor = 5.0
    numbers.opened = None
    assert dataset[3] == 15.0
    numbers.transform = half
    numbers.opened = None
    assert dataset[3] == 1.5


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held["paths"].reverse(),
        lambda held: held["paths"].append("z"),
        lambda held: held["table"].__setitem__(slice(None), 1),
        lambda held: held["mean"].__setitem__(0, 9.0),
        lambda held: held["weights"].zero_(),
    ],
)
def test_a_change_in_place_is_seen(change: Callable[[dict[str, Any]], None]) -> None:
    numbers = Numbers(
        paths=[f"{i}.jpg" for i in range(2000)],
        table=np.zeros(100_000),
        mean=np.array([0.5]),
        weights=torch.ones(3),
    )
    dataset = modcache.CachedDataset(numbers)
    before = dataset.scope
    assert dataset.scope == before
    change(numbers.others)
    assert dataset.scope != before


def test_what_its_own_runs_change_does_not_count() -> None:
    numbers = Numbers()
    dataset = modcache.CachedDataset(numbers)
    scope = dataset.scope
    for _ in range(2):
        assert dataset.__getitems__([0, 1, 2]) == [0.0, 1.0, 2.0]
    assert dataset.scope == scope
    assert numbers.runs == 3


class Doubled(Dataset[float]):
    def __init__(self, numbers: Dataset[float]) -> None:
        self.numbers = numbers

    def __getitem__(self, index: int) -> float:
        return 2 * self.numbers[index]


def test_a_cached_dataset_may_read_from_another() -> None:
    def of(**options: Any) -> modcache.CachedDataset[float]:
        return modcache.CachedDataset(
            Doubled(modcache.CachedDataset(Numbers(**options), variants=2))
        )

    dataset = of(transform=half)
    assert [dataset[i] for i in (0, 1, 1, 2)] == [0.0, 1.0, 1.0, 2.0]
    assert dataset.scope == of(transform=half).scope
    assert dataset.scope != of().scope
    inner = dataset.dataset.numbers  # type: ignore[attr-defined]
    inner.set_epoch(3)
    assert dataset.scope == of(transform=half).scope
    inner.dataset.transform = None
    inner.dataset.opened = None
    assert dataset[1] == 2.0


def records() -> list[dict[str, Any]]:
    return [{"file": f"{i}.jpg", "boxes": [(i, 1.5), None], 3: b"x"} for i in range(1000)]


def test_long_lists_of_plain_values_are_hashed_at_once() -> None:
    one = scope_of(Numbers(records=records()))
    assert one == scope_of(Numbers(records=records()))
    for change in (
        lambda held: held[999].update(file="z"),
        lambda held: held[5]["boxes"].append(1),
        lambda held: held[5].update(boxes=[[5, 1.5], None]),
        lambda held: held[5].update(boxes=[(5.0, 1.5), None]),
    ):
        changed = records()
        change(changed)
        assert scope_of(Numbers(records=changed)) != one
    # What is not plain is looked at piece by piece.
    scales = [Scale(float(i)) for i in range(600)]
    first = scope_of(Numbers(scales=scales))
    scales[17].factor = 0.5
    assert scope_of(Numbers(scales=scales)) != first


def test_an_item_is_seen_that_lies_where_another_lay_before_it() -> None:
    numbers = Numbers(times=[float(i) for i in range(2000)])
    cached = modcache.CachedDataset(numbers)
    scopes = {cached.scope}
    for i in range(20):
        numbers.others["times"][0] = None
        numbers.others["times"][0] = i + 0.5  # in the memory of the item that is gone
        scopes.add(cached.scope)
    assert len(scopes) == 21


@pytest.mark.parametrize(
    "write",
    [
        lambda held: held["list"][0].__setitem__(1, 999),
        lambda held: held["list"][0][2].append(1.0),
        lambda held: held["list"][0][2].__setitem__(0, True),
        lambda held: held["list"][0][3].update(name="other"),
        lambda held: held["list"][0][3].update({1.0: held["list"][0][3].pop(1)}),
        lambda held: held["dict"].__setitem__("first", held["dict"].pop("first")),
        lambda held: held["dict"].__setitem__("other", held["dict"].pop("last")),
    ],
)
def test_a_write_inside_an_item_or_to_a_key_of_a_long_container_is_seen(write: Any) -> None:
    numbers = Numbers(
        list=[[f"{i}.jpg", i, [1, 2.0], {1: None, "name": "x"}] for i in range(1000)],
        dict={"first": 0, **{f"{i}.jpg": 0 for i in range(62)}, "last": 0},
    )
    numbers.others["dict"] |= dict.fromkeys(range(1000), 0)
    cached = modcache.CachedDataset(numbers)
    before = cached.scope
    write(numbers.others)
    assert cached.scope != before


class Pair(NamedTuple):
    x: float


class Pairs(Dataset[Pair]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __getitem__(self, index: int) -> Pair:
        return Pair(float(index))


def test_what_is_only_written_anew_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = torch.nn.Linear(2, 2)
    encoder.lock = threading.Lock()
    for held in ("plain", encoder):
        dataset = modcache.CachedDataset(Pairs(held), scope=None if held == "plain" else "s")
        maker = SampleMaker((dataset.dataset,))
        maker.note_run()
        before = maker._seen
        assert before is not None
        Pair.__slotnames__ = []  # type: ignore[attr-defined]
        assert before.is_like(maker._look())
        del Pair.__slotnames__  # type: ignore[attr-defined]
        if held != "plain":
            encoder.kind = "other"
        else:
            dataset.dataset.held = "other"  # type: ignore[attr-defined]
        assert not before.is_like(maker._look())


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (threading.Lock(), r"attribute 'others' of Numbers"),
        (np.random.default_rng(0), r"has a random state, which is another one after each draw"),
        (torch.Generator(), r"has a random state, which is another one after each draw"),
    ],
)
def test_what_cannot_be_hashed_asks_for_a_scope(held: Any, says: str) -> None:
    numbers = Numbers(held=held)
    with pytest.raises(TypeError, match=rf"no scope can be made, since .*{says}.*scope="):
        modcache.CachedDataset(numbers)
    dataset = modcache.CachedDataset(numbers, scope="numbers@1")
    assert dataset.scope == "numbers@1"
    assert dataset[1] == 1.0


def test_a_scope_of_ones_own_is_not_looked_into() -> None:
    numbers = Numbers(transform=Scale(2.0))
    dataset = modcache.CachedDataset(numbers, scope="numbers@1")
    assert dataset[3] == 6.0
    numbers.transform.factor = 5.0
    assert dataset[3] == 6.0


def test_files_are_not_part_of_it_and_a_key_with_a_time_is_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "1.txt"
    path.write_text("old")

    class Files(Dataset[str]):
        def __init__(self, paths: list[Path]) -> None:
            self.paths = paths

        def __getitem__(self, index: int) -> str:
            return self.paths[index].read_text()

    files = Files([path])
    plain = modcache.CachedDataset(files)
    timed = modcache.CachedDataset(files, key=lambda i: f"{path}@{path.stat().st_mtime_ns}")
    assert (plain[0], timed[0]) == ("old", "old")
    path.write_text("new")
    assert (plain[0], timed[0]) == ("old", "new")


def scope_here() -> str:
    return scope_of(Numbers(transform=Compose([Scale(2.0), half]), paths=["a"] * 3000))


class Growing(Dataset[float]):
    """Becomes too deep to be looked at, once it has run."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.factor = 1.0

    def __getitem__(self, index: int) -> float:
        for _ in range(200):
            self.held = [self.held]
        return index * self.factor


def test_what_can_no_longer_be_looked_at_asks_for_a_scope() -> None:
    growing = Growing()
    cached = modcache.CachedDataset(growing)
    assert cached[3] == 3
    growing.factor = 2.0
    with pytest.raises(TypeError, match="scope"):
        cached[3]


def test_another_process_finds_the_same_scope(processes: ProcessRunner) -> None:
    assert processes.run(scope_here).value == scope_here()


@pytest.mark.parametrize("dtype", ["M8[s]", ">f8", "U8", [("a", "i4"), ("b", "U3")]])
def test_large_arrays_of_every_dtype_are_hashed(dtype: Any) -> None:
    array = np.zeros(20_000, dtype)
    other = array.copy()
    other[1] = np.ones(1, dtype)[0]
    assert scope_of(Numbers(held=array)) == scope_of(Numbers(held=array.copy()))
    assert scope_of(Numbers(held=array)) != scope_of(Numbers(held=other))


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda held: {f"new {key}": item for key, item in held.items()},
        lambda held: {key: [item[0], item[1] + 1] for key, item in held.items()},
    ],
)
def test_a_long_dict_that_is_filled_anew_is_seen(rewrite: Any) -> None:
    held: dict[str, Any] = {f"path {i}": ["label", i + 1000] for i in range(1000)}
    cached = modcache.CachedDataset(Numbers(held=held))
    before = cached.scope
    anew = rewrite(held)
    held.clear()
    held.update(anew)
    assert cached.scope != before


def test_labels_changed_all_over_a_long_list_are_seen() -> None:
    held = [[f"path {i}", i + 1000] for i in range(1000)]
    cached = modcache.CachedDataset(Numbers(held=held))
    before = cached.scope
    for item in held:
        item[1] += 1  # type: ignore[operator]
    assert cached.scope != before
