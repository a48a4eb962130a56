# SPDX-License-Identifier: Apache-2.0
"""What is different with an accelerator: places of memory, batches put together, streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import modcache
import pytest
import torch
from accelerator import DEVICE, IS_THERE, KIND, slowed_down
from memory_tier import wait_until_held
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.skipif(not IS_THERE, reason="needs an accelerator")

Growth = Callable[[], dict[str, int]]
Reopen = Callable[[], None]

DELAY_US = 200
PLACES = ["host", "pinned", str(DEVICE)]


class Encoder(torch.nn.Module):
    """Integers, so that equal means equal on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).view(3, 2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Structured(Encoder):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:  # type: ignore[override]
        half = (x @ self.weight).to(torch.bfloat16)
        return {"half": half, "sum": x.sum(1), "name": "structured"}


def whole_numbers(rows: int) -> torch.Tensor:
    return torch.arange(3.0 * rows).view(rows, 3)


@pytest.fixture(params=["eager", "scripted"])
def encoder(request: pytest.FixtureRequest) -> torch.nn.Module:
    module = Encoder().eval()
    return torch.jit.script(module) if request.param == "scripted" else module


@pytest.fixture(autouse=True)
def nothing_failed() -> Iterator[None]:
    with slowed_down(DELAY_US):
        yield
    torch.accelerator.synchronize()
    assert modcache.stats()["errors"] == 0


# --- hits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("device", ["cpu", str(DEVICE)])
def test_rows_come_back_where_the_input_lies(
    place: str, device: str, encoder: torch.nn.Module, reopen: Reopen, counted: Growth
) -> None:
    encoder = encoder.to(device)
    modcache.place(encoder, place)
    x, ids = whole_numbers(8).to(device), torch.arange(8)
    right = x @ encoder.weight
    first = modcache.lookup_or_run(encoder, x, ids)
    from_memory = modcache.lookup_or_run(encoder, x, ids)
    shuffled = modcache.lookup_or_run(encoder, x.flip(0), ids.flip(0))
    assert counted() == {"misses": 8, "stored": 8, "hits_memory": 16}
    reopen()
    counted()
    from_disk = modcache.lookup_or_run(encoder, x, ids)
    assert counted() == {"hits_disk": 8}
    for rows in (first, from_memory, shuffled.flip(0), from_disk):
        assert rows.device == x.device
        assert torch.equal(rows, right)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("made_on", ["cpu", str(DEVICE)])
def test_an_entry_made_on_one_device_serves_the_other(
    place: str, made_on: str, counted: Growth
) -> None:
    modcache.place("encoder@1", place)
    encoder = Encoder().eval()
    x, ids = whole_numbers(4), torch.arange(4)
    for device in (made_on, "cpu", DEVICE):
        rows = modcache.lookup_or_run(encoder.to(device), x.to(device), ids, scope="encoder@1")
        whole = modcache.lookup_or_run(encoder, x.to(device), "all", scope="encoder@1")
        for value in (rows, whole):
            assert value.device == torch.device(device)
            assert torch.equal(value.cpu(), x @ encoder.weight.cpu())
    grown = counted()
    assert (grown["misses"], grown["hits_memory"]) == (5, 10)


@pytest.mark.parametrize("place", PLACES)
def test_batches_of_stored_resident_computed_and_repeated_rows(
    place: str, encoder: torch.nn.Module, reopen: Reopen
) -> None:
    encoder = encoder.to(DEVICE)
    x = whole_numbers(10).to(DEVICE)
    modcache.lookup_or_run(encoder, x[:3], torch.arange(3))
    reopen()  # 0, 1, 2 lie on disk
    modcache.place(encoder, place)
    modcache.lookup_or_run(encoder, x[3:6], torch.arange(3, 6))
    order = torch.tensor([9, 0, 4, 7, 2, 4, 5, 9, 1, 3])
    rows = modcache.lookup_or_run(encoder, x[order], order)
    assert rows.device == DEVICE
    assert torch.equal(rows, x[order] @ encoder.weight)


@pytest.mark.parametrize("place", PLACES)
def test_structured_rows(place: str, reopen: Reopen, counted: Growth) -> None:
    modcache.place("structured", place)
    encoder = Structured().eval().to(DEVICE)
    x, ids = whole_numbers(6).to(DEVICE), torch.arange(6)
    right = encoder(x)
    modcache.lookup_or_run(encoder, x[:4], ids[:4], scope="structured")
    for _ in range(2):  # the first one runs two rows
        found = modcache.lookup_or_run(encoder, x, ids, scope="structured")
        assert found["name"] == "structured"
        for name in ("half", "sum"):
            assert found[name].device == DEVICE
            assert torch.equal(found[name], right[name])
    reopen()
    counted()
    found = modcache.lookup_or_run(encoder, x, ids, scope="structured")
    assert counted() == {"hits_disk": 6}
    assert torch.equal(found["half"], right["half"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("place", PLACES)
def test_narrowed_values(dtype: str, place: str, encoder: torch.nn.Module) -> None:
    modcache.configure(dtype=dtype)
    modcache.place(encoder, place)
    encoder = encoder.to(DEVICE)
    x, ids = torch.randn(4, 3, device=DEVICE), torch.arange(4)
    right = modcache.lookup_or_run(encoder, x, ids).to(getattr(torch, dtype)).float()
    assert torch.equal(modcache.lookup_or_run(encoder, x, ids), right)
    whole = modcache.lookup_or_run(encoder, x, "all").to(getattr(torch, dtype)).float()
    assert torch.equal(modcache.lookup_or_run(encoder, x, "all"), whole)


@pytest.mark.parametrize("place", PLACES)
def test_hits_may_be_written_into(place: str, encoder: torch.nn.Module) -> None:
    modcache.place(encoder, place)
    encoder = encoder.to(DEVICE)
    x, ids = whole_numbers(4).to(DEVICE), torch.arange(4)
    for keys in (ids, ids[:1], "all"):
        part = x[:1] if keys is not ids and keys != "all" else x
        first = modcache.lookup_or_run(encoder, part, keys).clone()
        for _ in range(3):
            hit = modcache.lookup_or_run(encoder, part, keys)
            assert torch.equal(hit, first)
            hit.zero_()


@pytest.mark.parametrize("place", PLACES)
def test_a_hit_goes_into_a_backward_pass(place: str, encoder: torch.nn.Module) -> None:
    modcache.place(encoder, place)
    encoder = encoder.to(DEVICE)
    head = torch.nn.Linear(2, 1).to(DEVICE)
    x, ids = whole_numbers(4).to(DEVICE), torch.arange(4)
    with torch.inference_mode():
        modcache.lookup_or_run(encoder, x, ids)
    for _ in range(2):
        head(modcache.lookup_or_run(encoder, x, ids)).sum().backward()
    assert torch.isfinite(head.weight.grad).all()


# --- places -------------------------------------------------------------------------------------


def test_hits_of_a_pinned_scope_are_pinned(
    encoder: torch.nn.Module, reopen: Reopen, counted: Growth
) -> None:
    assert modcache.place(encoder, "pinned") == "pinned"
    x, ids = whole_numbers(4), torch.arange(4)
    rows = modcache.lookup_or_run(encoder, x, ids)
    whole = modcache.lookup_or_run(encoder, x, "all")
    assert modcache.lookup_or_run(encoder, x, ids).is_pinned()
    hit = modcache.lookup_or_run(encoder, x, "all")
    assert hit.is_pinned()
    assert torch.equal(hit, whole)
    reopen()
    counted()
    from_disk = modcache.lookup_or_run(encoder, x, ids)
    assert counted() == {"hits_disk": 4}
    assert from_disk.is_pinned()
    assert torch.equal(from_disk, rows)
    there = from_disk.to(DEVICE, non_blocking=True)
    del from_disk
    again = modcache.lookup_or_run(encoder, x, ids)  # must not take the memory that is being read
    assert torch.equal(there.cpu(), rows)
    assert torch.equal(again, rows)


def test_values_of_a_device_take_its_memory_and_leave_it_with_their_entries() -> None:
    modcache.configure(memory="64MB", policy="lru")
    encoder = torch.nn.Linear(8, 1 << 18).requires_grad_(False).eval().to(DEVICE)  # 1 MiB a row
    assert modcache.place("wide", "accelerator") == str(DEVICE)
    x = torch.randn(16, 8, device=DEVICE)
    modcache.lookup_or_run(encoder, x, torch.arange(16), scope="wide")
    torch.accelerator.empty_cache()
    held = torch.accelerator.memory_allocated(DEVICE)
    assert modcache.stats()["bytes_memory"] >= 16 << 20
    modcache.clear("wide", tier="memory")
    assert held - torch.accelerator.memory_allocated(DEVICE) >= 16 << 20
    for first in range(0, 128, 16):  # twice the budget
        modcache.lookup_or_run(encoder, x, torch.arange(first, first + 16), scope="wide")
    assert modcache.stats()["bytes_memory"] <= 64_000_000
    assert modcache.stats()["evicted"] > 0
    modcache.clear("wide")


def test_rows_found_on_disk_come_to_the_device(
    encoder: torch.nn.Module, reopen: Reopen, counted: Growth
) -> None:
    encoder = encoder.to(DEVICE)
    x, ids = whole_numbers(32).to(DEVICE), torch.arange(32)
    modcache.lookup_or_run(encoder, x, ids)
    reopen()
    modcache.place(encoder, DEVICE)
    modcache.lookup_or_run(encoder, x, ids)
    wait_until_held(32)
    counted()
    assert torch.equal(modcache.lookup_or_run(encoder, x, ids), x @ encoder.weight)
    assert counted() == {"hits_memory": 32}


def test_prefetched_rows_come_to_the_device(
    encoder: torch.nn.Module, reopen: Reopen, counted: Growth
) -> None:
    encoder = encoder.to(DEVICE)
    x, ids = whole_numbers(32).to(DEVICE), torch.arange(32)
    modcache.lookup_or_run(encoder, x, ids)
    reopen()
    modcache.place(encoder, DEVICE)
    assert modcache.prefetch(encoder, ids) == 32
    wait_until_held(32)
    counted()
    assert torch.equal(modcache.lookup_or_run(encoder, x, ids), x @ encoder.weight)
    assert counted() == {"hits_memory": 32}


def test_what_is_held_moves_with_its_place(encoder: torch.nn.Module, counted: Growth) -> None:
    encoder = encoder.to(DEVICE)
    x, ids = whole_numbers(4).to(DEVICE), torch.arange(4)
    modcache.lookup_or_run(encoder, x, ids)
    modcache.lookup_or_run(encoder, x, "all")
    counted()
    for place in (str(DEVICE), "pinned", "host", str(DEVICE)):
        assert modcache.place(encoder, place) == place
        assert torch.equal(modcache.lookup_or_run(encoder, x, ids), x @ encoder.weight)
        assert torch.equal(modcache.lookup_or_run(encoder, x, "all"), x @ encoder.weight)
    assert counted() == {"hits_memory": 20}


def test_a_forked_worker_reads_from_disk_what_lies_on_the_device(encoder: torch.nn.Module) -> None:
    modcache.place("encoder@1", DEVICE)
    x, ids = whole_numbers(8), torch.arange(8)
    modcache.lookup_or_run(encoder, x, ids, scope="encoder@1")
    modcache.flush()

    def features(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        rows, keys = torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])
        with modcache.mode("read"):
            return modcache.lookup_or_run(encoder, rows, keys, scope="encoder@1")

    loader = DataLoader(
        TensorDataset(x, ids),
        batch_size=4,
        num_workers=2,
        collate_fn=features,
        multiprocessing_context="fork",
    )
    assert torch.equal(torch.cat(list(loader)), x @ encoder.weight)


@pytest.mark.parametrize("place", PLACES)
def test_threads_with_streams_of_their_own_get_right_values(
    place: str, encoder: torch.nn.Module
) -> None:
    modcache.configure(memory="1MB")  # entries leave while others read them
    modcache.place(encoder, place)
    encoder = encoder.to(DEVICE)
    x = torch.arange(3.0 * 4096, device=DEVICE).view(-1, 3)
    right = x @ encoder.weight
    torch.accelerator.synchronize()
    wrong: list[str] = []

    def use(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.Stream(device=DEVICE):
            for _ in range(50):
                ids = torch.randperm(4096, generator=generator)[:64]
                there = ids.to(DEVICE)
                rows = modcache.lookup_or_run(encoder, x[there], ids)
                if not torch.equal(rows, right[there]):
                    wrong.append(f"{place}, {seed}")

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("place", [f"{KIND}:99", "xpu:0", "meta"])
def test_a_device_that_is_not_there(place: str) -> None:
    with pytest.raises(ValueError, match="must be one of") as raised:
        modcache.place("s", place)
    assert f'"{DEVICE}"' in str(raised.value)
