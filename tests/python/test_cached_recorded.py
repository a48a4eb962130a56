# SPDX-License-Identifier: Apache-2.0
"""Cached modules and functions in TorchScript, torch.compile, torch.export and DDP."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict, List, Tuple  # noqa: UP035  (TorchScript reads these)

import modcache
import pytest
import torch
from models import reloaded
from processes import ProcessRunner
from torch import nn

Growth = Callable[[], dict[str, int]]
X = torch.arange(6.0).reshape(3, 2)
IDS = torch.arange(3)
ONCE = {"misses": 3, "stored": 3}
HIT = {"hits_memory": 3}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return self.linear(x) * times


@modcache.cached(key="ids")
class Decorated(Encoder):
    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return self.linear(x) * times


class Model(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x, ids=ids))


class ModelOfTexts(Model):
    def forward(self, x: torch.Tensor, ids: str) -> torch.Tensor:
        return self.head(self.encoder(x, ids=ids, times=2))


def instance(key: Any = "ids", **options: Any) -> Any:
    return modcache.cached(Encoder().requires_grad_(False).eval(), key=key, **options)


def decorated() -> Any:
    return Decorated().requires_grad_(False).eval()


both = pytest.mark.parametrize("make", [instance, decorated])


def uncached(module: Any, *args: Any) -> torch.Tensor:
    with modcache.mode("off"):
        return module(*args)  # type: ignore[no-any-return]


# TorchScript.


@both
@pytest.mark.parametrize("finish", [lambda m: m, reloaded, lambda m: modcache.freeze(m.eval())])
def test_a_scripted_parent_calls_the_operator(counted: Growth, make: Any, finish: Any) -> None:
    model = Model(make())
    scripted = finish(torch.jit.script(model))
    want = uncached(model, X, IDS)
    counted()
    for _ in range(2):
        assert torch.equal(scripted(X, IDS), want)
    assert counted() == {**ONCE, **HIT}


@both
def test_the_scripted_module_itself(counted: Growth, make: Any) -> None:
    module = make()
    scripted = torch.jit.script(module)
    for ids in (IDS, ["a", "b", "c"], "whole"):
        with modcache.mode("off"):
            want = module(X, 2, ids=ids)
        assert torch.equal(scripted(X, times=2, ids=ids), want)
        assert torch.equal(scripted(X, times=2, ids=ids), want)
    grown = counted()
    assert (grown["misses"], grown["hits_memory"]) == (7, 7)
    assert list(scripted.state_dict()) == list(module.state_dict())


@both
def test_scripting_leaves_the_parent_as_it_was(counted: Growth, make: Any) -> None:
    model = Model(make())
    encoder, names, print_before = (
        model.encoder,
        list(model.state_dict()),
        modcache.fingerprint(model.encoder),
    )
    torch.jit.script(model)
    assert model.encoder is encoder
    assert list(model.state_dict()) == names
    assert modcache.fingerprint(model.encoder) == print_before
    model(X, IDS)
    model(X, IDS)
    assert counted() == {**ONCE, **HIT}


class OtherNames(nn.Module):
    def __init__(this) -> None:  # noqa: N805
        super().__init__()
        this.linear = nn.Linear(2, 2)

    def forward(this, x: torch.Tensor, times: int = 1) -> torch.Tensor:  # noqa: N805
        return this.linear(x) * times


def test_names_in_scripted_code_do_not_matter(counted: Growth) -> None:
    module: Any = OtherNames().requires_grad_(False).eval()
    scripted = torch.jit.script(modcache.cached(module, key="value"))
    counted()
    for _ in range(2):
        assert torch.equal(scripted(X, times=2, value=IDS), module(X, 2))
    assert counted() == {**ONCE, **HIT}


def test_scripted_forms_share_entries(counted: Growth) -> None:
    module = instance()
    plain = torch.jit.script(Encoder().requires_grad_(False).eval())
    plain.load_state_dict(module.state_dict())
    want = modcache.lookup_or_run(plain, X, IDS)
    counted()
    assert torch.equal(torch.jit.script(module)(X, ids=IDS), want)
    assert counted() == HIT


def test_under_a_scope_eager_and_scripted_share_entries(counted: Growth) -> None:
    module = instance(scope="encoder@1")
    want = module(X, ids=IDS), module(X, 2, ids=IDS)
    scripted = torch.jit.script(module)
    counted()
    assert torch.equal(scripted(X, ids=IDS), want[0])
    assert torch.equal(scripted(X, times=2, ids=IDS), want[1])
    assert counted() == {"hits_memory": 6}


def test_texts_are_keys_in_scripted_parents(counted: Growth) -> None:
    model = ModelOfTexts(instance())
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(X, "a"), model(X, "a"))
    assert counted() == {"misses": 2, "stored": 2}
    assert torch.equal(scripted(X, "a"), model(X, "a"))
    assert counted() == {"hits_memory": 2}


class Keyed(nn.Module):
    def forward(
        self,
        pair: tuple[torch.Tensor, torch.Tensor],
        names: List[str],  # noqa: UP006
    ) -> Dict[str, torch.Tensor]:  # noqa: UP006
        return {"sum": pair[0] + pair[1]}


def test_a_key_of_its_own_and_a_structured_result(counted: Growth) -> None:
    scripted = torch.jit.script(modcache.cached(Keyed().eval(), key="names"))
    for _ in range(2):
        assert torch.equal(scripted((X, X), ["a", "b", "c"])["sum"], X * 2)
    assert counted() == {**ONCE, **HIT}


class ByName(nn.Module):
    def forward(self, x: torch.Tensor, *, shift: int) -> torch.Tensor:
        return x + shift


@pytest.mark.parametrize(
    ("module", "key", "says"),
    [
        (Encoder(), lambda x: "k", "under a key that Python makes"),
        (Encoder(), "content", "under a key that Python makes"),
        (ByName(), "ids", "keyword-only"),
    ],
)
def test_what_torchscript_cannot_do_is_a_clear_error(module: Any, key: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        torch.jit.script(nn.Sequential(modcache.cached(module, key=key)))


# torch.compile and torch.export.


@both
def test_a_compiled_parent_hits(counted: Growth, make: Any) -> None:
    model = Model(make())
    want = uncached(model, X, IDS)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    counted()
    for _ in range(2):
        assert torch.equal(compiled(X, IDS), want)
    assert counted() == {**ONCE, **HIT}


def test_compiled_without_fullgraph_texts_and_names_run_right(counted: Growth) -> None:
    model = ModelOfTexts(instance())
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X, "a"), uncached(model, X, "a"))
    assert counted()["hits_memory"] >= 1

    @modcache.cached(key="ids")
    def shifted(x: torch.Tensor, *, by: int) -> torch.Tensor:
        return x + by

    compiled = torch.compile(lambda x: shifted(x, by=2, ids=IDS) * 2, backend="eager")
    assert torch.equal(compiled(X), (X + 2) * 2)


def test_a_cached_function_in_compiled_code_hits(counted: Growth) -> None:
    @modcache.cached(key="ids")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(
        lambda x, ids: doubled(x, ids=ids) + 1, backend="eager", fullgraph=True
    )
    for _ in range(2):
        assert torch.equal(compiled(X, IDS), X * 2 + 1)
    assert counted() == {**ONCE, **HIT}


@both
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_parent_hits(counted: Growth, make: Any, strict: bool) -> None:
    model = Model(make())
    want = uncached(model, X, IDS)
    exported = torch.export.export(model, (X, IDS), strict=strict).module()
    counted()
    for _ in range(2):
        assert torch.equal(exported(X, IDS), want)
    assert counted() == {**ONCE, **HIT}


def test_an_exported_parent_shares_entries_with_the_scripted_module(counted: Growth) -> None:
    model = Model(instance())
    torch.jit.script(model)(X, IDS)
    exported = torch.export.export(model, (X, IDS)).module()
    counted()
    assert torch.equal(exported(X, IDS), uncached(model, X, IDS))
    assert counted()["hits_memory"] == 3


# DDP.


def _trained(rank: int, world_size: int, directory: str) -> Tuple[List[float], Dict[str, int]]:  # noqa: UP006
    store = torch.distributed.FileStore(f"{directory}/store", world_size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        torch.manual_seed(0)
        encoder = modcache.cached(Encoder(), key="ids", freeze=True)
        model = nn.parallel.DistributedDataParallel(Model(encoder))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        ids = IDS + 3 * rank
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(X + rank, ids).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(model.module.head.weight.sum()))
        return losses, modcache.stats()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_head_trains_under_ddp(
    processes: ProcessRunner, tmp_path: Path, world_size: int
) -> None:
    env = {"GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": os.environ.get("USE_LIBUV", "1")}
    children = [
        processes.start(_trained, rank, world_size, str(tmp_path), env=env)
        for rank in range(world_size)
    ]
    outcomes = [child.wait().value for child in children]
    assert len({tuple(weights) for weights, _ in outcomes}) == 1
    assert len(set(outcomes[0][0])) == 3
    for _, stats in outcomes:
        assert (stats["misses"], stats["hits_memory"]) == (3, 6)
