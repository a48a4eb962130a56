# SPDX-License-Identifier: Apache-2.0
"""Under torch's transforms, modes and tracing a module runs as it does without the cache."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from models import frozen
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

X = torch.linspace(-1, 1, 24).reshape(3, 8)
FORMS = pytest.mark.parametrize("form", [lambda m: m, torch.jit.script], ids=["eager", "scripted"])
MODES = pytest.mark.parametrize("mode", ["on", "off"])


def encoder(form: Any = lambda m: m) -> Any:
    return form(frozen(nn.Linear(8, 8)))


def by(mode: str, count: int = 1) -> dict[str, int]:
    return {"bypassed_type" if mode == "on" else "bypassed_off": count}


@FORMS
@MODES
def test_vmap(form: Any, mode: str, counted: Any) -> None:
    modcache.set_mode(mode)
    module = encoder(form)
    result = torch.vmap(lambda x: modcache.lookup_or_run(module, x, "k"))(X)
    assert torch.allclose(result, module(X))
    assert counted() == by(mode)


@FORMS
@MODES
def test_grad_and_jvp(form: Any, mode: str, counted: Any) -> None:
    modcache.set_mode(mode)
    module, x = encoder(form), X[0]
    want = torch.func.grad(lambda x: module(x).sum())(x)
    found = torch.func.grad(lambda x: modcache.lookup_or_run(module, x, "k").sum())(x)
    assert torch.allclose(found, want)
    _, tangent = torch.func.jvp(lambda x: modcache.lookup_or_run(module, x, "k"), (x,), (x,))
    assert torch.allclose(tangent, module(x) - module(x * 0), atol=1e-6)
    assert counted() == by(mode, 2)


def test_a_wrapped_tensor_inside_a_tuple() -> None:
    module = encoder()
    result = torch.vmap(lambda x: modcache.lookup_or_run(module, (x,), "k"))(X)
    assert torch.allclose(result, module(X))


@MODES
def test_fake_tensors(mode: str, counted: Any) -> None:
    modcache.set_mode(mode)
    with FakeTensorMode() as fake:
        module = encoder()
        assert modcache.lookup_or_run(module, torch.randn(2, 8), "k").shape == (2, 8)
    outside = modcache.lookup_or_run(nn.Identity(), fake.from_tensor(X), "k")
    assert type(outside).__name__ == "FakeTensor"
    assert counted() == by(mode, 2)


def test_other_dispatch_modes_see_the_run(counted: Any) -> None:
    module = encoder()
    modcache.lookup_or_run(module, X, "k")
    with FlopCounterMode(display=False) as flops:
        modcache.lookup_or_run(module, X, "k")
    assert flops.get_total_flops() > 0
    assert counted() == {"misses": 1, "stored": 1, "bypassed_type": 1}
    graph = make_fx(lambda x: modcache.lookup_or_run(module, x, "k"))(X)
    assert torch.allclose(graph(X * 2), module(X * 2))


@MODES
def test_tracing_records_the_module(mode: str, counted: Any) -> None:
    modcache.set_mode(mode)
    module = encoder()
    traced = torch.jit.trace(
        lambda x: modcache.lookup_or_run(module, x, "k") + 1, X, check_trace=False
    )
    assert torch.allclose(traced(X * 2), module(X * 2) + 1)
    assert "cache::" not in str(traced.graph)
    assert counted() == by(mode)


def test_a_bypass_checks_the_key_and_says_why(capfd: Any) -> None:
    class Warned(nn.Identity):
        pass

    module = Warned()
    with pytest.raises(ValueError, match="empty"):
        torch.vmap(lambda x: modcache.lookup_or_run(module, x, ""))(X)
    torch.vmap(lambda x: modcache.lookup_or_run(module, x, "k"))(X)
    assert "under a transform of torch.func" in capfd.readouterr().err


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.nn.functional.linear else result


@MODES
def test_under_a_function_mode_a_module_may_do_something_else(mode: str, counted: Any) -> None:
    module = encoder()
    for _ in range(6):
        plain = modcache.lookup_or_run(module, X, "k")
    modcache.set_mode(mode)
    modcache.reset_stats()
    with Doubling():
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), plain * 2)
    assert counted() == by(mode)
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), plain)


def test_a_default_device_is_no_such_mode(counted: Any) -> None:
    module = encoder()
    with torch.device("cpu"):
        for _ in range(2):
            modcache.lookup_or_run(module, X, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
