# SPDX-License-Identifier: Apache-2.0
"""Batches fed to an accelerator: what streams wait for, and who keeps which memory.

test_side_stream.py has the same as an order of calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import modcache
import pytest
import torch
from accelerator import DEVICE, IS_TEST_DEVICE, IS_THERE, held_back, slowed_down
from modcache._feed.side_stream import AcceleratorStream
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.skipif(not IS_THERE, reason="needs an accelerator")

Growth = Callable[[], dict[str, int]]

DELAY_US = 200


@pytest.fixture(autouse=True)
def nothing_failed() -> Iterator[None]:
    with slowed_down(DELAY_US):
        yield
    torch.accelerator.synchronize()
    assert modcache.stats()["errors"] == 0


def test_batches_arrive_on_the_device_in_order() -> None:
    loader = DataLoader(TensorDataset(torch.arange(40), torch.randn(40, 8)), batch_size=4)
    for _ in range(3):
        batches = list(modcache.Prefetcher(loader))
        assert len(batches) == 10
        for (ids, x), (right_ids, right_x) in zip(batches, loader, strict=True):
            assert ids.device == x.device == DEVICE
            assert torch.equal(ids.cpu(), right_ids)
            assert torch.equal(x.cpu(), right_x)


def test_a_batch_is_whole_when_it_is_used_and_stays_so_while_it_is() -> None:
    batches = [torch.full((1 << 18,), float(i)) for i in range(24)]
    used = []
    prefetched = iter(modcache.Prefetcher(batches, depth=4))
    with held_back():  # the current stream is far behind the host
        for batch in prefetched:
            used.append(batch.clone())
            del batch  # its memory must not be given to a later batch before it was read
    for i in range(24):
        assert float(used[i].amin()) == float(used[i].amax()) == i


def test_features_of_a_resident_cache_arrive_on_the_device(counted: Growth) -> None:
    encoder = torch.nn.Linear(3, 2).requires_grad_(False).eval().to(DEVICE)
    modcache.place(encoder, "accelerator")
    x = torch.arange(3.0 * 64).view(64, 3)
    loader = DataLoader(TensorDataset(x, torch.arange(64)), batch_size=8, shuffle=True)

    def encode(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        images, ids = batch
        return modcache.lookup_or_run(encoder, images.to(DEVICE), ids), ids

    prefetcher = modcache.Prefetcher(loader, encode=encode)
    for epoch in range(3):
        for features, ids in prefetcher:
            assert features.device == ids.device == DEVICE
            torch.testing.assert_close(features, encoder(x.to(DEVICE)[ids]))
        assert counted().get("misses", 0) == (64 if epoch == 0 else 0)


def test_the_current_stream_of_the_consumer_waits() -> None:
    mine = torch.Stream(device=DEVICE)
    with mine:
        batches = [torch.full((1 << 22,), float(i)) for i in range(8)]
        sums = [batch.amin() + batch.amax() for batch in modcache.Prefetcher(batches)]
    mine.synchronize()
    assert [int(twice) // 2 for twice in sums] == list(range(8))


def test_on_the_cpu_nothing_is_copied() -> None:
    batches = [torch.ones(2) for _ in range(4)]
    for batch, same in zip(modcache.Prefetcher(batches, device="cpu"), batches, strict=True):
        assert batch is same


def test_the_thread_sees_what_the_current_stream_was_doing() -> None:
    weight = torch.zeros(1000, device=DEVICE)
    with held_back():
        weight.fill_(1)  # done only when the current stream goes on
        prefetched = iter(modcache.Prefetcher([0, 1, 2], encode=lambda _: weight.clone()))
        first = next(prefetched)
        time.sleep(0.05)  # for a copy that waits for nothing
    for batch in (first, *prefetched):
        assert torch.equal(batch, torch.ones(1000, device=DEVICE))


@pytest.mark.skipif(not IS_TEST_DEVICE, reason="needs a device that can be slowed down")
@pytest.mark.parametrize("is_pinned", [False, True])
def test_the_host_does_not_wait_for_a_copy(is_pinned: bool) -> None:
    stream = AcceleratorStream(DEVICE)
    batch = torch.ones(1000)
    if is_pinned:
        batch = batch.pin_memory()
    with slowed_down(500_000), stream.working():
        there = stream.copied(batch)
        mark = stream.mark()
        assert not mark.query()
    stream.hand_over(mark, [there])
    assert torch.equal(there.cpu(), batch)


def test_what_lies_on_the_device_is_not_copied() -> None:
    stream = AcceleratorStream(DEVICE)
    there = torch.ones(3, device=DEVICE)
    assert stream.copied(there) is there


def test_the_thread_has_the_autocast_of_the_caller() -> None:
    x = torch.ones(4, 4, device=DEVICE)
    for is_enabled in (False, True):
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=is_enabled):
            prefetched = modcache.Prefetcher([0, 1, 2, 3], encode=lambda _: torch.mm(x, x))
            dtypes = {batch.dtype for batch in prefetched}
        assert dtypes == {torch.bfloat16 if is_enabled else torch.float32}


def test_a_kind_of_device_without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.get_device_module(DEVICE)
    monkeypatch.delattr(module, "get_amp_supported_dtype", raising=False)
    batches = list(modcache.Prefetcher([torch.ones(2)] * 4))
    assert all(batch.device == DEVICE for batch in batches)


@pytest.mark.skipif(
    not IS_THERE or torch.accelerator.device_count() < 2, reason="needs two devices"
)
def test_another_device_than_the_current_one() -> None:
    second = torch.device(DEVICE.type, 1)
    batches = [torch.full((1 << 16,), float(i)) for i in range(8)]
    fed = list(modcache.Prefetcher(batches, device=second))
    assert torch.accelerator.current_device_index() == DEVICE.index
    for i, batch in enumerate(fed):
        assert batch.device == second
        assert float(batch.amin()) == float(batch.amax()) == i
