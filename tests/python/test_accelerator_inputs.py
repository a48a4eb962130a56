# SPDX-License-Identifier: Apache-2.0
"""Modules and inputs on an accelerator: identity, comparison of inputs, autocast, modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import modcache
import pytest
import torch
from accelerator import DEVICE, IS_THERE, slowed_down
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.skipif(not IS_THERE, reason="needs an accelerator")

Growth = Callable[[], dict[str, int]]
Reopen = Callable[[], None]

DELAY_US = 200


class Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.fixture(params=["eager", "scripted"])
def module(request: pytest.FixtureRequest) -> torch.nn.Module:
    module = Doubled().eval().to(DEVICE)
    return torch.jit.script(module) if request.param == "scripted" else module


@pytest.fixture(autouse=True)
def nothing_failed() -> Iterator[None]:
    with slowed_down(DELAY_US):
        yield
    torch.accelerator.synchronize()
    assert modcache.stats()["errors"] == 0


def rows() -> torch.Tensor:
    return torch.arange(12.0, device=DEVICE).view(4, 3)


# --- Identity -----------------------------------------------------------------------------------


def test_a_module_has_one_fingerprint_on_every_device(module: torch.nn.Module) -> None:
    there = modcache.fingerprint(module)
    assert modcache.fingerprint(module.to("cpu")) == there


def test_weights_that_change_on_the_device_are_another_module(
    module: torch.nn.Module, counted: Growth
) -> None:
    x, ids = rows(), torch.arange(4)
    modcache.lookup_or_run(module, x, ids)
    counted()
    with torch.no_grad():
        module.weight.mul_(3)
    assert torch.equal(modcache.lookup_or_run(module, x, ids), x * 6)
    assert counted() == {"misses": 4, "stored": 4}


def test_weights_of_a_side_stream_are_those_that_are_hashed() -> None:
    """A write that the device has not done yet is in the fingerprint of the stream that made it."""
    module = Doubled().eval().to(DEVICE)
    with torch.no_grad(), torch.Stream(device=DEVICE), slowed_down(20_000):
        module.weight.fill_(5)
        late = modcache.fingerprint(module)
    module.weight.data = torch.full((3,), 5.0, device=DEVICE)
    assert modcache.fingerprint(module) == late


def test_content_keys_are_those_of_the_host() -> None:
    x = rows()
    assert modcache.content_keys(x) == modcache.content_keys(x.cpu())
    assert modcache.content_key((x, 3)) == modcache.content_key((x.cpu(), 3))


# --- Inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["rows", "one key"])
def test_another_input_under_one_key_is_noticed_in_the_first_calls_and_then_in_some(
    keys: str, module: torch.nn.Module, counted: Growth
) -> None:
    key = "all" if keys == "one key" else torch.arange(4)
    conflicts = 4 if keys == "rows" else 1
    modcache.lookup_or_run(module, rows(), key, scope=keys)
    counted()
    found = modcache.lookup_or_run(module, rows() + 1, key, scope=keys)
    assert counted()["key_conflicts"] == conflicts
    assert torch.equal(found, 2 * (rows() + 1))
    for _ in range(14):
        modcache.lookup_or_run(module, rows() + 1, key, scope=keys)
    noticed = 0
    for number in range(300):
        counted()
        modcache.lookup_or_run(module, rows() + 2 + number, key, scope=keys)
        noticed += counted().get("key_conflicts", 0) > 0
    assert 0 < noticed < 30


def test_the_same_input_is_the_same_on_either_device(counted: Growth, reopen: Reopen) -> None:
    module, ids = Doubled().eval(), torch.arange(4)
    modcache.lookup_or_run(module, rows().cpu(), ids, scope="s")
    reopen()
    counted()
    modcache.lookup_or_run(module.to(DEVICE), rows(), ids, scope="s")
    assert counted() == {"hits_disk": 4}


# --- What runs them -----------------------------------------------------------------------------


def test_autocast_of_the_device_is_part_of_the_address(counted: Growth) -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, torch.eye(x.shape[1], device=x.device))

    module, x, ids = Product().eval(), rows(), torch.arange(4)
    assert modcache.lookup_or_run(module, x, "all").dtype == torch.float32
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert modcache.lookup_or_run(module, x, "all").dtype == torch.bfloat16
        assert modcache.lookup_or_run(module, x, ids).dtype == torch.bfloat16
    assert modcache.lookup_or_run(module, x, ids).dtype == torch.float32
    assert counted()["misses"] == 10


def test_a_cached_dataset_makes_samples_without_autocast() -> None:
    class OnDevice(torch.utils.data.Dataset[torch.Tensor]):
        def __getitem__(self, index: int) -> torch.Tensor:
            x = torch.ones(2, 2, device=DEVICE)
            return torch.mm(x, x).cpu()

        def __len__(self) -> int:
            return 2

    dataset = modcache.CachedDataset(OnDevice())
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert dataset[0].dtype == torch.float32


def test_verify_compares_what_lies_on_the_device(module: torch.nn.Module, counted: Growth) -> None:
    x, ids = rows(), torch.arange(4)
    modcache.lookup_or_run(module, x, ids, scope="s")
    counted()
    with modcache.mode("verify"):
        modcache.lookup_or_run(module, x, ids, scope="s")
        assert counted().get("verify_differences", 0) == 0
        with torch.no_grad():
            module.weight.mul_(2)
        fresh = modcache.lookup_or_run(module, x, ids, scope="s")
    assert counted()["verify_differences"] == 4
    assert torch.equal(fresh, x * 4)


def test_a_fill_on_the_device_serves_the_host(counted: Growth) -> None:
    module = Doubled().eval()
    loader = DataLoader(TensorDataset(torch.arange(4), rows().cpu()), batch_size=2)
    cached = modcache.cached(module.to(DEVICE), key="ids", scope="s")
    for ids, x in loader:
        cached(x.to(DEVICE), ids=ids)
    counted()
    found = modcache.cached(module.cpu(), key="ids", scope="s")(rows().cpu(), ids=torch.arange(4))
    assert counted() == {"hits_memory": 4}
    assert torch.equal(found, 2 * rows().cpu())


def test_ids_may_lie_on_the_device(module: torch.nn.Module, counted: Growth) -> None:
    modcache.lookup_or_run(module, rows(), torch.arange(4, device=DEVICE))
    modcache.lookup_or_run(module, rows(), torch.arange(4))
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}


def test_stored_and_looked_up_by_hand() -> None:
    torch.ops.cache.store("s", "key", rows())
    is_found, value = torch.ops.cache.lookup("s", "key")
    assert is_found
    assert torch.equal(value.cpu(), rows().cpu())


def test_a_hit_is_whole_for_the_stream_that_asked(module: torch.nn.Module) -> None:
    ids = torch.arange(4)
    for place in ("host", "pinned", str(DEVICE)):
        modcache.place("s", place)
        for key in (ids, "all"):
            modcache.lookup_or_run(module, rows(), key, scope="s")
            with torch.Stream(device=DEVICE), slowed_down(5000):
                hit = modcache.lookup_or_run(module, rows(), key, scope="s")
                assert torch.equal(hit.clone(), 2 * rows())


def test_what_a_side_stream_computed_is_stored_as_it_becomes(
    module: torch.nn.Module, reopen: Reopen
) -> None:
    x, ids = rows(), torch.arange(4)
    torch.accelerator.synchronize()
    with torch.Stream(device=DEVICE), slowed_down(5000):
        modcache.lookup_or_run(module, x, ids)
    reopen()
    assert torch.equal(modcache.lookup_or_run(module, x, ids), 2 * x)
