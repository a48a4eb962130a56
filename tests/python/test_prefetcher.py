# SPDX-License-Identifier: Apache-2.0
"""modcache.Prefetcher: the loader's batches, made ahead by a thread that ends when it should."""

from __future__ import annotations

import collections
import contextvars
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from processes import python_environment
from torch.utils.data import DataLoader, Dataset, TensorDataset

Growth = Callable[[], dict[str, int]]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "prefetcher" in thread.name]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert threads() == []


class Counted:
    """An iterable of numbers that counts what was taken from it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.count):
            with self.changed:
                self.taken += 1
                self.changed.notify_all()
            yield torch.tensor([i])

    def wait_until_taken(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.taken >= count, timeout=30)


def numbers(batches: Any) -> list[int]:
    return [int(batch.flatten()[0]) for batch in batches]


def take_all(batches: Any, seen: list[int]) -> None:
    for batch in batches:
        seen.append(int(batch))


class Noisy(Dataset[torch.Tensor]):
    """Samples with noise of the process's generators, as random transforms draw it."""

    def __getitem__(self, i: int) -> torch.Tensor:
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return torch.tensor([float(i), *drawn], dtype=torch.float64)

    def __len__(self) -> int:
        return 12


def training(loader: Any) -> list[torch.Tensor]:
    """What two epochs see, with draws of the training step's own in between."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    seen = []
    for _ in range(2):
        for batch in loader:
            seen += [batch, torch.rand(3), torch.tensor([random.random(), np.random.rand()])]
    return seen


# --- the batches --------------------------------------------------------------------------------


def test_batches_come_in_order_each_once_epoch_after_epoch() -> None:
    prefetcher = modcache.Prefetcher(Counted(20))
    for _ in range(4):
        assert numbers(prefetcher) == list(range(20))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2, 9])
def test_few_batches(count: int, depth: int) -> None:
    prefetcher = modcache.Prefetcher(Counted(count), depth=depth)
    for _ in range(3):
        assert numbers(prefetcher) == list(range(count))


@pytest.mark.parametrize("workers", [0, 2])
def test_training_sees_what_it_sees_without_it(workers: int) -> None:
    loader = DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=workers)
    plain = training(loader)
    ahead = training(modcache.Prefetcher(loader))
    assert len(plain) == len(ahead)
    for a, b in zip(plain, ahead, strict=True):
        assert torch.equal(a, b)


def test_persistent_workers_are_used_again() -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(8)), batch_size=2, num_workers=2, persistent_workers=True
    )
    prefetcher = modcache.Prefetcher(loader)
    for batch in prefetcher:
        assert batch[0].tolist() == [0, 1]
        break
    assert [batch[0].tolist() for batch in prefetcher] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_loader_that_draws_no_random_numbers_is_used_by_the_thread() -> None:
    users = []

    def encode(batch: torch.Tensor) -> torch.Tensor:
        users.append(threading.current_thread().name)
        return batch

    list(modcache.Prefetcher(Counted(4), encode=encode))
    here = threading.current_thread().name
    assert users == [here, here, "modcache-prefetcher", "modcache-prefetcher"]


def test_it_has_the_length_of_its_loader() -> None:
    assert len(modcache.Prefetcher([1, 2, 3])) == 3
    with pytest.raises(TypeError, match="len"):
        len(modcache.Prefetcher(Counted(3)))


def test_no_more_than_depth_batches_are_ahead() -> None:
    loader = Counted(50)
    batches = iter(modcache.Prefetcher(loader, depth=3))
    for _ in range(3):
        next(batches)  # the third comes from the thread
    loader.wait_until_taken(6)
    for taken in range(4, 9):
        next(batches)
        loader.wait_until_taken(taken + 3)
        assert loader.taken == taken + 3


def test_values_of_any_kind_are_handed_through() -> None:
    Point = collections.namedtuple("Point", "x y")
    batch = {"a": [torch.ones(2), "text", None], "b": Point(torch.zeros(1), 3), "c": {1, 2}}
    (same,) = modcache.Prefetcher([batch], device="cpu")
    assert same is batch


def test_two_iterations_at_once() -> None:
    prefetcher = modcache.Prefetcher(Counted(9))
    assert [numbers(pair) for pair in zip(prefetcher, prefetcher, strict=True)] == [
        [i, i] for i in range(9)
    ]


# --- encode -------------------------------------------------------------------------------------


def test_features_come_from_the_cache_ahead_of_use(counted: Growth) -> None:
    encoder = torch.nn.Linear(3, 2).requires_grad_(False).eval()
    loader = DataLoader(TensorDataset(torch.randn(12, 3), torch.arange(12)), batch_size=4)

    def encode(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return modcache.lookup_or_run(encoder, batch[0], batch[1]), batch[1]

    prefetcher = modcache.Prefetcher(loader, encode=encode)
    cold = list(prefetcher)
    assert counted() == {"misses": 12, "stored": 12}
    warm = list(prefetcher)
    assert counted() == {"hits_memory": 12}
    for (features, ids), (again, _), (images, _) in zip(cold, warm, loader, strict=True):
        assert torch.equal(features, again)
        torch.testing.assert_close(features.cpu(), encoder(images))
        assert ids.shape == (4,)


def test_the_thread_works_in_the_mode_of_its_caller() -> None:
    text = contextvars.ContextVar("text", default="none")
    seen = []

    def encode(_: torch.Tensor) -> None:
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        autocast = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        seen.append(
            (threading.current_thread().name, *modes, *autocast, modcache.mode(), text.get())
        )

    def last_seen() -> tuple[Any, ...]:
        seen.clear()
        list(modcache.Prefetcher(Counted(4), encode=encode))
        return seen[-1]

    thread = "modcache-prefetcher"
    assert last_seen() == (thread, True, False, False, torch.bfloat16, "on", "none")
    text.set("some")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16), modcache.mode("read"):
        assert last_seen() == (thread, False, False, True, torch.float16, "read", "some")
    with torch.inference_mode(), modcache.mode("off"):
        assert last_seen() == (thread, False, True, False, torch.bfloat16, "off", "some")


def test_the_mode_of_the_process_is_seen_by_the_next_batch() -> None:
    modes = []
    loader = Counted(30)
    batches = iter(
        modcache.Prefetcher(loader, depth=1, encode=lambda _: modes.append(modcache.mode()))
    )
    for _ in range(3):
        next(batches)
    modcache.set_mode("off")
    list(batches)
    assert modes[-1] == "off"


# --- what goes wrong ----------------------------------------------------------------------------


def failing(at: int) -> Iterator[torch.Tensor]:
    for i in range(at):
        yield torch.tensor([i])
    raise OSError("the disk is gone")


@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_what_the_loader_raises_comes_in_the_place_of_its_batch(at: int) -> None:
    seen: list[int] = []
    batches = iter(modcache.Prefetcher(failing(at), depth=4))
    with pytest.raises(OSError, match="the disk is gone") as raised:
        take_all(batches, seen)
    assert seen == list(range(at))
    assert "failing" in [entry.name for entry in raised.traceback]
    with pytest.raises(StopIteration):
        next(batches)


def test_what_encode_raises_comes_in_the_place_of_its_batch() -> None:
    def encode(batch: torch.Tensor) -> torch.Tensor:
        if int(batch) == 3:
            raise KeyError("no such label")
        return batch

    prefetcher = modcache.Prefetcher(Counted(9), encode=encode)
    for _ in range(2):
        seen: list[int] = []
        with pytest.raises(KeyError, match="no such label"):
            take_all(prefetcher, seen)
        assert seen == [0, 1, 2]


@pytest.mark.parametrize("at", [0, 3])
def test_an_encode_that_raises_stop_iteration_does_not_end_the_loop_in_silence(at: int) -> None:
    def encode(batch: torch.Tensor) -> torch.Tensor:
        return next(iter([])) if int(batch) == at else batch

    with pytest.raises(RuntimeError, match="encode raised StopIteration"):
        list(modcache.Prefetcher(Counted(9), encode=encode))


def test_a_worker_that_raises() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4)), num_workers=1, collate_fn=divided)
    with pytest.raises(ZeroDivisionError):
        list(modcache.Prefetcher(loader))


def divided(samples: list[tuple[torch.Tensor]]) -> list[float]:
    return [1 // (2 - int(sample[0])) for sample in samples]


def test_leaving_the_loop_ends_the_thread_and_the_loader() -> None:
    ended = []

    def loader() -> Iterator[torch.Tensor]:
        try:
            for i in range(1000):
                yield torch.tensor([i])
        finally:
            ended.append(True)

    for batch in modcache.Prefetcher(loader()):
        if int(batch) == 5:
            assert threads() == ["modcache-prefetcher"]
            break
    assert threads() == []
    assert ended == [True]


def test_closing_ends_the_threads_of_all_iterations() -> None:
    with modcache.Prefetcher(Counted(50)) as prefetcher:
        iterations = [iter(prefetcher), iter(prefetcher)]
        for batches in iterations:
            assert [int(next(batches)) for _ in range(3)] == [0, 1, 2]
        assert len(threads()) == 2
    assert threads() == []
    for batches in iterations:
        with pytest.raises(StopIteration):
            next(batches)
    assert numbers(prefetcher) == list(range(50))


def test_an_exception_in_the_loop_leaves_no_thread() -> None:
    def train() -> None:
        for batch in modcache.Prefetcher(Counted(50)):
            if int(batch) == 4:
                raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        train()
    gc.collect()


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Also where the shell has started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_while_it_waits_for_a_batch_leaves_no_thread() -> None:
    def loader() -> Iterator[torch.Tensor]:
        yield from (torch.tensor([i]) for i in range(3))
        os.kill(os.getpid(), signal.SIGINT)
        yield torch.tensor([3])

    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        take_all(modcache.Prefetcher(loader(), depth=1), seen)
    assert seen in ([0, 1], [0, 1, 2])


ENDS_IN_THE_MIDDLE = """
import itertools, modcache, torch
batches = iter(modcache.Prefetcher(map(torch.tensor, itertools.count()), device="cpu"))
print([int(next(batches)) for _ in range(4)])
"""


def test_a_process_that_ends_in_the_middle_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_IN_THE_MIDDLE],
        capture_output=True,
        text=True,
        timeout=120,
        env=python_environment(),
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[0, 1, 2, 3]", "")


def test_a_forked_child_leaves_the_parents_iteration_alone() -> None:
    batches = iter(modcache.Prefetcher(Counted(50)))
    assert [int(next(batches)) for _ in range(3)] == [0, 1, 2]
    child = os.fork()
    if child == 0:
        is_at_its_end = next(batches, None) is None
        del batches
        gc.collect()
        os._exit(0 if is_at_its_end else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert int(next(batches)) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"loader": 3}, TypeError, "loader must be a DataLoader or another iterable, but got int"),
        ({"depth": 0}, ValueError, "depth is 0, but at least 1"),
        ({"depth": 2.0}, TypeError, "depth must be an int, but got float"),
        ({"depth": True}, TypeError, "depth must be an int, but got bool"),
        ({"encode": 5}, TypeError, "encode must be a function of one batch, but got int"),
        ({"device": 5}, TypeError, "device must be a str, a torch.device or None, but got int"),
        ({"device": "gpu"}, ValueError, "device is 'gpu', but must be one of \"cpu\""),
        ({"device": "meta"}, ValueError, "which this machine does not have"),
        ({"device": "cuda:99"}, ValueError, "which this machine does not have"),
    ],
)
def test_mistakes(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        modcache.Prefetcher(**{"loader": [], **arguments})
    assert says in str(raised.value)
