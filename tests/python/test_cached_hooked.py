# SPDX-License-Identifier: Apache-2.0
"""Modules whose forward was replaced by one that wraps it, as accelerate's hooks do."""

from __future__ import annotations

import copy
import functools
import os
import pickle
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from modcache._identity import scratch
from modcache._identity.module_state import state_of
from torch import nn

Growth = Callable[[], dict[str, int]]
with_compiled_part = pytest.mark.skipif(
    os.environ.get("MODCACHE_COMPILED_PART") == "off", reason="it makes no snapshots"
)
X = torch.arange(6.0).reshape(3, 2)
IDS = torch.arange(3)
ONCE = {"misses": 3, "stored": 3}
HIT = {"hits_memory": 3}


class AlignDevicesHook:
    """Has the attributes of accelerate's hook, and does what that does without offloading."""

    no_grad = False

    def __init__(self, *, io_same_device: bool = False, factor: float = 1.0) -> None:
        self.execution_device = torch.device("cpu")
        self.offload = False
        self.io_same_device = io_same_device
        self.weights_map = None
        self.skip_keys = None
        self.input_device: torch.device | None = None
        self.param_original_devices: dict[str, torch.device] = {}
        self.tied_params_names: set[str] = set()
        self.factor = factor

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self.io_same_device:
            self.input_device = next(each.device for each in args)
        moved = (
            each.to(self.execution_device) if isinstance(each, torch.Tensor) else each
            for each in args
        )
        return tuple(moved), kwargs

    def post_forward(self, module: nn.Module, output: torch.Tensor) -> torch.Tensor:
        if self.io_same_device and self.input_device is not None:
            output = output.to(self.input_device)
        return output * self.factor


def add_hook_to_module(module: Any, hook: Any) -> Any:
    """Does what accelerate's function of this name does."""
    if hasattr(module, "_hf_hook") and hasattr(module, "_old_forward"):
        old_forward = module._old_forward
    else:
        old_forward = module.forward
        module._old_forward = old_forward
    module = hook.init_hook(module)
    module._hf_hook = hook

    def new_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = module._hf_hook.pre_forward(module, *args, **kwargs)
        if module._hf_hook.no_grad:
            with torch.no_grad():
                output = module._old_forward(*args, **kwargs)
        else:
            output = module._old_forward(*args, **kwargs)
        return module._hf_hook.post_forward(module, output)

    partial = functools.partial(new_forward, module)
    module.forward = functools.update_wrapper(partial, old_forward)
    return module


def remove_hook_from_module(module: Any) -> None:
    module.forward = module._old_forward
    delattr(module, "_old_forward")
    delattr(module, "_hf_hook")


@pytest.fixture(autouse=True)
def _as_accelerate_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file's hook notes the device of an input as accelerate's does."""
    monkeypatch.setitem(
        scratch._SCRATCH, (__name__, "AlignDevicesHook"), frozenset({"input_device"})
    )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return self.drop(self.linear(x)) * times


def plain() -> Encoder:
    return Encoder().requires_grad_(False).eval()


def hooked(factor: float = 1.0) -> Any:
    """A model as dispatch_model leaves it: hooks on it and on its parts."""
    module = plain()
    add_hook_to_module(module.linear, AlignDevicesHook())
    return add_hook_to_module(module, AlignDevicesHook(io_same_device=True, factor=factor))


WANT = plain()(X)


def test_a_fingerprint_follows_the_hooks() -> None:
    before = modcache.fingerprint(hooked())
    assert before == modcache.fingerprint(hooked())
    assert before != modcache.fingerprint(plain())
    assert before != modcache.fingerprint(hooked(2.0))
    module = hooked()
    module.linear._hf_hook.offload = True
    assert modcache.fingerprint(module) != before


def test_the_first_call_is_stored_already(counted: Growth) -> None:
    module = hooked()
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, X, IDS), WANT)
    assert torch.equal(modcache.lookup_or_run(hooked(), X, IDS), WANT)
    assert counted() == {**ONCE, "hits_memory": 6}


@with_compiled_part
def test_it_is_recognized_without_a_walk_whatever_device_was_noted() -> None:
    module = hooked()
    for _ in range(6):
        modcache.fingerprint(module)
    assert state_of(module).known is not None
    module(X)
    known = state_of(module).known
    assert known is not None
    assert known.tensors() is not None
    module._hf_hook.factor = 2.0
    assert known.tensors() is None


def test_a_hooked_module_can_be_cached(counted: Growth) -> None:
    given = hooked(2.0)
    module: Any = modcache.cached(given, key="ids")
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), WANT * 2)
    assert counted() == {**ONCE, **HIT}
    assert torch.equal(module(X, times=3, ids=IDS), WANT * 6)
    assert torch.equal(module(X, 3, ids=IDS), WANT * 6)
    assert torch.equal(given(X), WANT * 2)
    assert modcache.fingerprint(module) == modcache.fingerprint(given)
    counted()
    assert torch.equal(modcache.lookup_or_run(given, X, IDS), WANT * 2)
    assert modcache.fill(module, [(X, IDS)], progress=False).runs == 0
    assert counted() == {"hits_memory": 6}
    with modcache.mode("off"):
        assert torch.equal(module(X, ids=IDS), WANT * 2)


def test_a_hook_that_changes_is_seen(counted: Growth) -> None:
    given = hooked()
    module: Any = modcache.cached(given, key="ids")
    for _ in range(6):
        module(X, ids=IDS)
    given._hf_hook.factor = 3.0
    assert torch.equal(module(X, ids=IDS), WANT * 3)
    given.linear.weight.data.mul_(2)
    assert torch.equal(module(X, ids=IDS), given(X))
    add_hook_to_module(module, AlignDevicesHook(factor=5.0))
    assert torch.equal(module(X, ids=IDS), given(X))
    remove_hook_from_module(given)
    assert torch.equal(module(X, ids=IDS), given.linear(X))
    del given.forward
    assert torch.equal(module(X, ids=IDS), given.linear(X))
    assert counted()["misses"] == 3 * 6


def test_a_cached_module_can_be_hooked(counted: Growth) -> None:
    module = add_hook_to_module(modcache.cached(plain(), key="ids"), AlignDevicesHook(factor=2.0))
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), WANT * 2)
    assert counted() == {**ONCE, **HIT}  # the hook runs at each call


def test_a_frozen_one_stays_in_evaluation_mode() -> None:
    module = modcache.cached(hooked().train(), key="ids", freeze=True)
    nn.Sequential(module).train()
    assert torch.equal(module(X, ids=IDS), WANT)


def test_other_methods_run_with_the_hooks_of_its_parts(counted: Growth) -> None:
    class WithMethod(Encoder):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    given: Any = WithMethod().requires_grad_(False).eval()
    add_hook_to_module(given, AlignDevicesHook())
    add_hook_to_module(given.linear, AlignDevicesHook(factor=4.0))
    module = modcache.cached(given, key="ids", methods=("encode",))
    for _ in range(2):
        assert torch.equal(module.encode(X, ids=IDS), WANT * 4)
    assert counted() == {**ONCE, **HIT}


def test_what_would_lose_the_hooks_is_refused() -> None:
    module = modcache.cached(hooked(), key="ids")
    for lose in (copy.deepcopy, pickle.dumps, torch.jit.script):
        with pytest.raises(TypeError, match=r"cached Encoder .*take the hooks off first"):
            lose(module)


def test_any_other_replacement_is_refused() -> None:
    for forward in (lambda x: x, nn.Linear(2, 2).forward, functools.partial(torch.mul, other=2)):
        module: Any = plain()
        module.forward = forward
        with pytest.raises(TypeError, match="the forward of this Encoder was replaced"):
            modcache.cached(module, key="ids")


def test_the_real_hooks(counted: Growth) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    given = plain()
    hooks.add_hook_to_module(given.linear, hooks.AlignDevicesHook(execution_device="cpu"))
    hooks.add_hook_to_module(
        given, hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True)
    )
    module: Any = modcache.cached(given, key="ids")
    for _ in range(2):
        assert torch.equal(module(X, ids=IDS), WANT)
    assert counted() == {**ONCE, **HIT}
