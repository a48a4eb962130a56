# SPDX-License-Identifier: Apache-2.0
"""Every way to make a call, with its input on an accelerator; results of every kind and dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from accelerator import DEVICE, IS_THERE, KIND, slowed_down

pytestmark = pytest.mark.skipif(not IS_THERE, reason="needs an accelerator")

Growth = Callable[[], dict[str, int]]
Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

DELAY_US = 200
PLACES = ["host", "pinned", str(DEVICE)]
IDS = torch.arange(4)
second_device = pytest.mark.skipif(
    not IS_THERE or torch.accelerator.device_count() < 2, reason="needs two devices"
)


@pytest.fixture(autouse=True)
def nothing_failed() -> Iterator[None]:
    with slowed_down(DELAY_US):
        yield
    torch.accelerator.synchronize()
    assert modcache.stats()["errors"] == 0


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).view(3, 2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder().eval()

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, x, ids)


class Recorded(Model):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids)


def rows() -> torch.Tensor:
    return torch.arange(12.0, device=DEVICE).view(4, 3)


def exported(tmp_path: Path) -> Call:
    return torch.export.export(Recorded().to(DEVICE), (rows(), IDS)).module()


def compiled(tmp_path: Path) -> Call:
    model = Recorded().to(DEVICE)
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def scripted(tmp_path: Path) -> Call:
    return torch.jit.script(Model().to(DEVICE).eval())


def loaded(tmp_path: Path) -> Call:
    torch.jit.save(scripted(tmp_path), tmp_path / "model.pt")
    return torch.jit.load(tmp_path / "model.pt")


def frozen(tmp_path: Path) -> Call:
    return modcache.freeze(scripted(tmp_path))


def of_a_file(tmp_path: Path) -> Call:
    path = str(tmp_path / "encoder.pt")
    torch.jit.save(torch.jit.script(Encoder().to(DEVICE).eval()), path)
    return lambda x, ids: torch.ops.cache.lookup_or_run_file(path, x, ids)


def lazy(tmp_path: Path) -> Call:
    module = modcache.lazy(lambda: Encoder().to(DEVICE).eval(), scope="lazy")
    return lambda x, ids: modcache.lookup_or_run(module, x, ids)


def cached(tmp_path: Path) -> Call:
    module = modcache.cached(Encoder().to(DEVICE).eval(), key="ids")
    return lambda x, ids: module(x, ids=ids)


SCRIPTING = [scripted, loaded, frozen, of_a_file]


@pytest.mark.parametrize("form", [exported, compiled, lazy, cached, *SCRIPTING])
def test_every_form_hits_with_its_input_on_the_device(
    form: Callable[[Path], Call], tmp_path: Path, counted: Growth
) -> None:
    call, x = form(tmp_path), rows()
    right = x @ Encoder().weight.to(DEVICE)
    assert torch.equal(call(x, IDS), right)
    counted()
    for _ in range(2):
        found = call(x, IDS)
        assert found.device == DEVICE
        assert torch.equal(found, right)
    assert counted() == {"hits_memory": 8}


class OnBoth(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.cpu() * 2, x * 2, torch.ones(x.shape[0])


@pytest.mark.parametrize("place", PLACES)
def test_a_result_lies_where_the_module_put_it(place: str) -> None:
    modcache.place("both", place)
    x = rows()
    for key in (IDS, "all"):
        for _ in range(3):
            host, there, ones = modcache.lookup_or_run(OnBoth(), x, key, scope="both")
            assert (host.device.type, there.device, ones.device.type) == ("cpu", DEVICE, "cpu")
            assert torch.equal(host, x.cpu() * 2)
            assert torch.equal(there, x * 2)
            assert torch.equal(ones, torch.ones(4))


@second_device
@pytest.mark.parametrize("place", [*PLACES, f"{KIND}:1"])
def test_two_devices_share_entries(place: str, counted: Growth) -> None:
    modcache.place("both", place)
    encoder = Encoder().eval()
    right = rows().cpu() @ encoder.weight
    for key in (IDS, "all"):
        for device in (DEVICE, torch.device(KIND, 1), DEVICE):
            x = rows().to(device)
            found = modcache.lookup_or_run(encoder.to(device), x, key, scope="both")
            assert found.device == device
            assert torch.equal(found.cpu(), right)
    assert counted()["misses"] == 5


class Cast(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cpu().to(self.dtype).to(x.device)


DTYPES = [torch.bool, torch.uint8, torch.uint32, torch.bfloat16, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_every_dtype(place: str, dtype: torch.dtype) -> None:
    modcache.place("cast", place)
    x = rows()
    right = x.cpu().to(dtype).view(torch.uint8)
    for key in (IDS, "all"):
        for _ in range(2):
            found = modcache.lookup_or_run(Cast(dtype), x, key, scope="cast")
            assert found.dtype == dtype
            assert torch.equal(found.cpu().view(torch.uint8), right)
    more = torch.cat([x, x + 20])  # found rows beside rows that run
    mixed = modcache.lookup_or_run(Cast(dtype), more, torch.arange(8), scope="cast").cpu()
    assert torch.equal(mixed.view(torch.uint8), more.cpu().to(dtype).view(torch.uint8))


def random(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x)


@pytest.mark.parametrize("function", [random, dropped])
def test_random_numbers_of_the_device_are_not_cached(
    function: Callable[[torch.Tensor], torch.Tensor], counted: Growth
) -> None:
    class Random(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    modcache.lookup_or_run(Random(), rows(), IDS)
    assert counted() == {"bypassed_impure": 4}


def test_weights_that_an_optimizer_moves_are_never_taken_for_the_old_ones() -> None:
    module: Any = torch.nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            found = modcache.lookup_or_run(module, rows(), IDS)
            torch.testing.assert_close(found, module(rows()))
        module(rows()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
