# SPDX-License-Identifier: Apache-2.0
"""Random numbers: what a dataset's code draws, and that nobody else notices."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import modcache
import numpy as np
import processes  # noqa: F401  the forkserver that has torch loaded
import pytest
import torch
from accelerator import DEVICE, IS_THERE
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset[Any]):
    """Draws from every global generator, as augmentations do."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.seeds = False

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        if self.seeds:
            torch.manual_seed(7)
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.mark.parametrize("seeds", [False, True])
def test_a_miss_and_a_hit_leave_the_global_states_alone(seeds: bool) -> None:
    drawn = Drawn()
    drawn.seeds = seeds
    dataset = modcache.CachedDataset(drawn)
    seed_all(3)
    expected = draws()
    for _ in range(3):  # a miss, hits
        seed_all(3)
        dataset.__getitems__([0, 1])
        assert draws() == expected
    with modcache.mode("off"):
        seed_all(3)
        dataset[2]
        assert draws() == expected


def test_a_dataset_that_raises_leaves_them_alone_too() -> None:
    dataset = modcache.CachedDataset(Drawn())
    seed_all(3)
    expected = draws()
    seed_all(3)
    with pytest.raises(IndexError):
        dataset.__getitems__([0, 9])
    assert draws() == expected


def test_what_a_sample_draws_depends_on_its_key_alone() -> None:
    seed_all(1)
    first = list(modcache.CachedDataset(Drawn()))
    modcache.clear()
    seed_all(2)
    backwards = modcache.CachedDataset(Drawn()).__getitems__([3, 2, 1, 0])
    assert backwards[::-1] == first
    assert len({sample[1:] for sample in first}) == 4
    with modcache.mode("off"):
        assert list(modcache.CachedDataset(Drawn())) == first


def test_another_seed_gives_other_draws_and_other_entries() -> None:
    one = modcache.CachedDataset(Drawn())
    other = modcache.CachedDataset(Drawn(), seed=1)
    assert one[0] != other[0]
    assert one[0] == modcache.CachedDataset(Drawn())[0]
    assert other[0] == modcache.CachedDataset(Drawn(), seed=1)[0]


def test_a_backend_without_a_python_module_changes_nothing(monkeypatch: Any) -> None:
    backend = torch.device("privateuseone")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: backend)
    dataset = modcache.CachedDataset(Drawn())
    assert dataset[0] == dataset[0]


@pytest.mark.skipif(not IS_THERE, reason="needs an accelerator: its generator")
def test_the_generator_of_an_accelerator_is_left_alone_too() -> None:
    torch.rand((), device=DEVICE)  # initialises it
    generator = torch.get_device_module(DEVICE).default_generators[0]

    def drawn() -> float:
        return float(torch.rand((), device=generator.device, generator=generator))

    class OnDevice(Dataset[Any]):
        def __getitem__(self, index: int) -> float:
            return drawn()

    generator.manual_seed(3)
    expected = drawn()
    generator.manual_seed(3)
    sample = modcache.CachedDataset(OnDevice(), scope="drawn")[0]
    assert drawn() == expected
    modcache.clear()
    assert modcache.CachedDataset(OnDevice(), scope="drawn")[0] == sample


# --- Variants ---------------------------------------------------------------------------


def test_in_k_epochs_each_sample_gives_each_variant_once() -> None:
    dataset = modcache.CachedDataset(Drawn(16), variants=3)
    epochs = []
    for epoch in range(6):
        dataset.set_epoch(epoch)
        epochs.append(dataset.__getitems__(list(range(16))))
    for i in range(16):
        given = [epoch[i] for epoch in epochs]
        assert len(set(given)) == 3
        assert given[:3] == given[3:]
    # Not all samples are at the same variant in the same epoch.
    names = {dataset._variants.number(str(i), 0) for i in range(16)}
    assert names == {0, 1, 2}
    assert modcache.stats()["misses"] == 48


def test_the_order_of_variants_is_a_function_of_seed_epoch_and_key() -> None:
    dataset = modcache.CachedDataset(Drawn(), variants=4)
    dataset.set_epoch(2)
    expected = dataset.__getitems__([0, 1, 2, 3])
    modcache.clear()
    again = modcache.CachedDataset(Drawn(), variants=4)
    again.set_epoch(0)
    again[1]
    again.set_epoch(2)
    assert again.__getitems__([3, 1, 0, 2]) == [expected[i] for i in (3, 1, 0, 2)]


def test_without_set_epoch_the_nth_time_of_an_index_is_epoch_n() -> None:
    told = modcache.CachedDataset(Drawn(), variants=3)
    counted = modcache.CachedDataset(Drawn(), variants=3)
    for epoch in range(4):
        told.set_epoch(epoch)
        assert counted.__getitems__([0, -3]) == told.__getitems__([0, 1])
    # The same index twice is two turns.
    two = counted.__getitems__([2, 2])
    assert two[0] != two[1]


def test_more_variants_keep_those_that_are_there() -> None:
    modcache.CachedDataset(Drawn())[0]
    dataset = modcache.CachedDataset(Drawn(), variants=2)
    given = [dataset[0], dataset[0]]
    assert modcache.CachedDataset(Drawn())[0] in given
    assert modcache.stats()["misses"] == 2


def test_variants_have_keys_of_their_own_whatever_the_key() -> None:
    class Names(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: str) -> float:
            return float(torch.rand(()))

    dataset = modcache.CachedDataset(Names(), variants=2, scope="names")
    keys = ["a", "a (variant 1)", "a (seed 2, variant 1)"]
    values = set()
    for seed in (0, 2):
        dataset = modcache.CachedDataset(Names(), variants=2, scope="names", seed=seed)
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            values |= set(dataset.__getitems__(keys))
    assert len(values) == 12
    assert modcache.contains("names", "a")
    assert modcache.contains("names", "a (variant 1)")


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (0.5, TypeError)])
def test_a_wrong_epoch_is_an_error(epoch: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="epoch must be"):
        modcache.CachedDataset(Drawn(), variants=2).set_epoch(epoch)


def test_copies_go_on_from_the_same_turn_on_their_own() -> None:
    dataset = modcache.CachedDataset(Drawn(), variants=4)
    first = dataset[0]
    copies = [copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))]
    second = dataset[0]
    assert [other[0] for other in copies] == [second, second]
    assert first != second


def samples_by_epoch(
    workers: int, *, tells: bool, persistent: bool = False, method: str | None = None
) -> list[list[Any]]:
    modcache.clear()
    dataset = modcache.CachedDataset(Drawn(12), variants=3)
    loader = DataLoader(
        dataset,
        batch_size=2,
        num_workers=workers,
        collate_fn=list,
        persistent_workers=persistent,
        multiprocessing_context=method,
    )
    epochs = []
    for epoch in range(4):
        if tells:
            dataset.set_epoch(epoch)
        epochs.append([sample for batch in loader for sample in batch])
    return epochs


@pytest.mark.parametrize("tells", [True, False])
def test_variants_do_not_depend_on_the_workers(tells: bool) -> None:
    expected = samples_by_epoch(0, tells=tells)
    assert expected[0] != expected[1]
    assert samples_by_epoch(2, tells=tells) == expected
    assert samples_by_epoch(3, tells=tells, persistent=True) == expected
    assert samples_by_epoch(2, tells=tells, persistent=True, method="forkserver") == expected


def test_variants_need_no_shared_memory_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to open shared memory object")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    dataset = modcache.CachedDataset(Drawn(), variants=2)
    first, second, third = (dataset[0] for _ in range(3))
    assert first == third
    assert first != second
