# SPDX-License-Identifier: Apache-2.0
"""modcache.cached on modules and their classes: everything else about them stays as it was."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

Growth = Callable[[], dict[str, int]]
X = torch.arange(6.0).reshape(3, 2)
IDS = torch.arange(3)
ONCE = {"misses": 3, "stored": 3}
HIT = {"hits_memory": 3}


class Encoder(nn.Module):
    """Encodes."""

    def __init__(self, size: int = 2) -> None:
        # The older way, which a decorator that returned another class would break.
        super(Encoder, self).__init__()  # noqa: UP008
        self.linear = nn.Linear(size, size)
        self.drop = nn.Dropout()
        self.scale = 2.0

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        """Runs."""
        return self.drop(self.linear(x)) * self.scale * times


@modcache.cached(key="ids")
class Decorated(Encoder):
    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return super().forward(x, times) + 1


@modcache.cached(key="ids", freeze=True)
class Frozen(nn.Module):
    def __init__(self, size: int = 2) -> None:
        super(Frozen, self).__init__()  # noqa: UP008
        self.linear = nn.Linear(size, size)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.linear(x))


def instance() -> Any:
    return modcache.cached(Encoder().requires_grad_(False).eval(), key="ids")


def decorated() -> Any:
    return Decorated().requires_grad_(False).eval()


both = pytest.mark.parametrize("make", [instance, decorated])


def uncached(module: Any, *args: Any) -> torch.Tensor:
    with modcache.mode("off"):
        return module(*args, ids=IDS)  # type: ignore[no-any-return]


@both
def test_it_runs_once_per_key(counted: Growth, make: Any) -> None:
    module = make()
    want = uncached(module, X)
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == ONCE
    for args, kwargs in (((X,), {}), ((X, 1), {}), ((), {"x": X, "times": 1})):
        assert torch.equal(module(*args, **kwargs, ids=IDS), want)
        assert counted() == HIT
    assert torch.equal(module(X, times=2, ids=IDS), uncached(module, X, 2))


@both
def test_weights_that_change_are_seen(make: Any) -> None:
    module = make()
    module(X, ids=IDS)
    module.linear.weight.data.mul_(3)
    assert torch.equal(module(X, ids=IDS), uncached(module, X))
    module.scale = 5.0
    assert torch.equal(module(X, ids=IDS), uncached(module, X))


@both
def test_it_looks_like_its_target(make: Any) -> None:
    module = make()
    assert isinstance(module, Encoder)
    assert type(module).__qualname__ in ("Encoder", "Decorated")
    assert list(inspect.signature(module.forward).parameters) == ["x", "times", "ids"]
    assert list(inspect.signature(type(module)).parameters) == ["size"]
    assert list(module.state_dict()) == list(Encoder().state_dict())
    assert module.load_state_dict(Encoder().state_dict(), strict=True)
    assert [name for name, _ in module.named_modules()] == ["", "linear", "drop"]


def test_docstrings_stay() -> None:
    module = instance()
    assert type(module).__doc__ == "Encodes."
    assert module.forward.__doc__ == "Runs."
    assert repr(module) == repr(Encoder())


def test_the_plain_module_stays_plain_and_shares_its_state(counted: Growth) -> None:
    plain = Encoder().requires_grad_(False).eval()
    module = modcache.cached(plain, key="ids")
    assert type(plain) is Encoder
    assert torch.equal(plain(X), plain(X))
    assert not counted()
    module.half()
    assert plain.linear.weight.dtype == torch.float16
    plain.scale = 7.0
    assert module.scale == 7.0


def test_its_fingerprint_is_that_of_the_plain_module(counted: Growth) -> None:
    plain = Encoder().requires_grad_(False).eval()
    before = modcache.fingerprint(plain)
    module = modcache.cached(plain, key="ids", freeze=True)
    assert modcache.fingerprint(module) == modcache.fingerprint(plain) == before
    want = modcache.lookup_or_run(plain, X, IDS)
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert torch.equal(modcache.lookup_or_run(module, X, IDS), want)
    assert counted() == {"hits_memory": 6}
    parent, plain_parent = nn.Sequential(module), nn.Sequential(plain)
    assert modcache.fingerprint(parent) == modcache.fingerprint(plain_parent)


def test_a_decorated_class_has_the_fingerprint_of_the_undecorated_one() -> None:
    made = {}
    for is_decorated in (False, True):

        class Local(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = 2.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.scale

        made[is_decorated] = modcache.cached(Local, key="ids", freeze=True) if is_decorated else Local
    assert modcache.fingerprint(made[True]().train(False)) == modcache.fingerprint(
        made[False]().train(False)
    )


@both
def test_moving_and_casting(make: Any) -> None:
    module = make()
    module(X, ids=IDS)
    assert module.to("cpu") is module
    assert module.half().float() is module
    assert torch.equal(module(X, ids=IDS), uncached(module, X))
    assert module.double()(X.double(), ids=IDS).dtype == torch.float64


@both
def test_a_deep_copy_is_cached_and_has_an_identity_of_its_own(counted: Growth, make: Any) -> None:
    module = make()
    want = module(X, ids=IDS)
    double = copy.deepcopy(module)
    assert type(double) is type(module)
    counted()
    assert torch.equal(double(X, ids=IDS), want)
    assert counted() == HIT
    double.linear.weight.data.mul_(2)
    assert torch.equal(double(X, ids=IDS), uncached(double, X))
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == HIT


def test_a_module_in_a_circle_can_be_copied() -> None:
    module = instance()
    module.here = [module]
    assert copy.deepcopy(module).here[0].here[0].scale == 2.0


def _run_pickled(data: bytes) -> tuple[list[Any], dict[str, int]]:
    module = pickle.loads(data)
    return module(X, ids=IDS).tolist(), modcache.stats()


def _run_loaded(path: str) -> tuple[list[Any], dict[str, int]]:
    module = torch.load(path, weights_only=False)
    return module(X, ids=IDS).tolist(), modcache.stats()


@both
def test_it_can_be_pickled_to_another_process(processes: ProcessRunner, make: Any) -> None:
    module = make()
    want = module(X, ids=IDS)
    modcache.flush()
    value, stats = processes.run(_run_pickled, pickle.dumps(module)).value
    assert value == want.tolist()
    assert (stats["hits_disk"], stats["misses"]) == (3, 0)


@both
def test_it_can_be_saved_whole(processes: ProcessRunner, tmp_path: Path, make: Any) -> None:
    module = nn.ModuleList([make()])[0]
    want = module(X, ids=IDS)
    modcache.flush()
    torch.save(module, tmp_path / "whole.pt")
    value, stats = processes.run(_run_loaded, str(tmp_path / "whole.pt")).value
    assert value == want.tolist()
    assert (stats["hits_disk"], stats["misses"]) == (3, 0)


# Freezing.


def frozen_instance() -> Any:
    return modcache.cached(Encoder(), key="ids", freeze=True)


@pytest.mark.parametrize("make", [frozen_instance, Frozen])
def test_frozen_modules_stay_in_evaluation_mode(counted: Growth, make: Any) -> None:
    module = make()
    for encoder in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert not any(p.requires_grad for p in encoder.parameters())
        parent = nn.Sequential(encoder, nn.Linear(2, 2)).train()
        assert parent.training
        assert not any(part.training for part in encoder.modules())
        assert encoder.train() is encoder
        assert not encoder.drop.training
        encoder(X, ids=IDS)
        counted()
        encoder(X, ids=IDS)
        assert counted() == HIT


def test_a_subclass_of_a_frozen_class_is_frozen_too() -> None:
    class Deeper(Frozen):
        def __init__(self) -> None:
            super().__init__(2)
            self.more = nn.Linear(2, 2)

    module = Deeper()
    assert module.linear.weight.requires_grad is False
    assert not module.train().training


# Subclasses.


class Inherits(Decorated):
    def __init__(self) -> None:
        super().__init__(2)
        self.scale = 3.0


class Overrides(Decorated):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, ids=ids) * 10


def test_subclasses_inherit_the_cached_forward(counted: Growth) -> None:
    module = Inherits().requires_grad_(False).eval()
    want = uncached(module, X)
    counted()
    assert torch.equal(module(X, ids=IDS), want)
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == {**ONCE, **HIT}


def test_a_subclass_may_run_it_as_a_part_of_its_own(counted: Growth) -> None:
    module = Overrides().requires_grad_(False).eval()
    want = uncached(module, X)
    counted()
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), want)
    assert counted() == {**ONCE, **HIT}
    # The whole forward under the same keys is another entry.
    whole = modcache.lookup_or_run(module, (X, IDS), IDS)
    assert torch.equal(whole, want)
    assert torch.equal(module(X, ids=IDS), want)


# What is around it.


@both
def test_hooks_run_at_each_call_and_are_not_cached(counted: Growth, make: Any) -> None:
    module = make()
    want = module(X, ids=IDS)
    counted()
    seen: list[torch.Tensor] = []
    handles = [
        module.register_forward_hook(lambda m, args, output: seen.append(output)),
        module.register_forward_hook(lambda m, args, output: output * 2),
        module.register_forward_pre_hook(lambda m, args: (args[0] + 0, *args[1:])),
    ]
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), want * 2)
    assert counted() == {"hits_memory": 6}
    assert len(seen) == 2
    for handle in handles:
        handle.remove()
    assert torch.equal(module(X, ids=IDS), want)


@both
def test_hooks_of_a_parent_that_is_cached_as_a_whole_count(make: Any) -> None:
    module = make()
    parent = nn.ModuleDict({"encoder": module})
    before = modcache.fingerprint(module)
    module.register_forward_hook(_doubled)
    assert modcache.fingerprint(module) == before
    assert modcache.fingerprint(parent) != modcache.fingerprint(nn.ModuleDict({"encoder": make()}))


def _doubled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


@both
def test_functional_call_uses_the_given_weights(make: Any) -> None:
    module = make()
    module(X, ids=IDS)
    zeros = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    out = torch.func.functional_call(module, zeros, (X,), {"ids": IDS})
    assert torch.equal(out, torch.full_like(out, 1.0 if type(module) is Decorated else 0.0))
    assert torch.equal(module(X, ids=IDS), uncached(module, X))


@both
def test_data_parallel_of_one_device(counted: Growth, make: Any) -> None:
    module = nn.DataParallel(make())
    want = module(X, ids=IDS)
    assert torch.equal(module(X, ids=IDS), want)
    assert counted() == {**ONCE, **HIT}


class LitModel(nn.Module):
    """Does to its parts what Lightning's modules and trainers do."""

    def __init__(self, encoder: nn.Module, rate: float = 0.5) -> None:
        super().__init__()
        frame: Any = inspect.currentframe()
        values = inspect.getargvalues(frame).locals
        self.hparams = {k: copy.deepcopy(v) for k, v in values.items() if k in ("rate", "encoder")}
        self.encoder = encoder
        self.head = nn.Linear(2, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, ids = batch
        return self.head(self.encoder(x, ids=ids)).square().mean()


@pytest.mark.parametrize("make", [frozen_instance, Frozen])
def test_a_training_loop_in_lightnings_manner(counted: Growth, make: Any) -> None:
    model = LitModel(make())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    losses = []
    counted()
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        loss = model.training_step((X, IDS))
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            losses.append(float(model.training_step((X, IDS))))
    assert counted() == {**ONCE, "hits_memory": 15}
    assert losses[0] > losses[-1]
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 3


# Mistakes.


def test_what_cannot_be_cached_is_said_at_once() -> None:
    replaced = Encoder()
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    for target, says in (
        (torch.jit.script(nn.Linear(2, 2)), "is scripted"),
        (nn.DataParallel(Encoder()), "cache that, then wrap it"),
        (replaced, "was replaced on the instance"),
        (nn.ModuleList(), "has no forward"),
        (nn.ModuleDict, "has no forward"),
    ):
        with pytest.raises(TypeError, match=says):
            modcache.cached(target, key="ids")
    with pytest.raises(TypeError, match=r"needs key"):

        @modcache.cached
        class _Module(nn.Module):
            pass


@both
def test_a_missing_key_is_named(make: Any) -> None:
    with pytest.raises(TypeError, match=r"forward\(\) needs the keyword ids="):
        make()(X)


def test_a_cached_module_may_be_cached_anew(counted: Growth) -> None:
    module = modcache.cached(instance(), key="content")
    module(X)
    assert torch.equal(module(X), module(X.clone()))
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}
    assert type(module).__qualname__ == "Encoder"
