# SPDX-License-Identifier: Apache-2.0
"""Calls of eager modules that the compiled part begins: one key, one tensor, nothing stored."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import modcache
import pytest
import torch
from hits import X, frozen, functions_called
from modcache._identity.module_state import ModuleState, state_of
from torch import nn


class Returns(nn.Module):
    """Returns what `make` makes of the doubled input, or raises."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x * 2)

    def twice(self, x: torch.Tensor) -> Any:
        return self.make(x * 4)


def known(make: Callable[[torch.Tensor], Any], scope: str) -> nn.Module:
    """A module that calls may begin for: it was called before, and has a snapshot."""
    module = frozen(Returns(make))
    for number in range(6):
        modcache.lookup_or_run(module, X, f"known {number}", scope=scope)
    return module


def begins(call: Callable[[], Any]) -> bool:
    """Whether a call is made by the compiled part and what goes on from there."""
    called = functions_called(call)
    return "finished" in called and "_looked_up" not in called


scopes = pytest.mark.parametrize("scope", ["", "named"])


@scopes
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.half(),
        lambda x: (x, x + 1),
        lambda x: {"a": x, "b": [x, None, 3]},
        lambda x: nn.Parameter(x, requires_grad=False),
        lambda x: 7,
        lambda x: None,
    ],
    ids=["tensor", "transposed", "strided", "half", "tuple", "dict", "parameter",
         "int", "none"],
)  # fmt: skip
def test_a_miss_is_stored_and_found_again(
    make: Callable[[torch.Tensor], Any], grad: bool, scope: str
) -> None:
    module = known(make, scope)
    before = modcache.stats()
    with torch.set_grad_enabled(grad):
        results = []
        call = lambda: results.append(modcache.lookup_or_run(module, X, "new", scope=scope))  # noqa: E731
        assert begins(call)
        call()
    first, again = results
    plain = module(X)
    assert type(first) is type(plain)
    torch.testing.assert_close(first, plain, rtol=0, atol=0)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    after = modcache.stats()
    assert after["misses"] == before["misses"] + 1
    assert after["stored"] == before["stored"] + 1
    assert after["hits_memory"] == before["hits_memory"] + 1


def test_another_method_is_another_call() -> None:
    module = known(lambda x: x, "named")
    call = lambda key: modcache.lookup_or_run(module, X, key, scope="named", method="twice")  # noqa: E731
    assert not begins(lambda: call("its first call")), "its function was not looked at before"
    assert begins(lambda: call("k"))
    assert torch.equal(call("k"), 4 * X)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        modcache.lookup_or_run(module, X, "k", scope="named", method="nothing_like_it")


def _fails_at_large(x: torch.Tensor) -> torch.Tensor:
    if x[0, 0] > 100:
        raise KeyError("its own")
    return x


@scopes
def test_an_exception_of_the_module_is_raised_and_others_go_on(scope: str) -> None:
    modcache.configure(match="none")
    module = known(_fails_at_large, scope)
    stored = modcache.stats()["stored"]
    with pytest.raises(KeyError, match="its own") as raised:
        modcache.lookup_or_run(module, 200 + X, "k", scope=scope)
    # The exception that is kept here holds the frames of the call, and nobody waits for it.
    assert raised.value is not None
    results: list[torch.Tensor] = []
    other = threading.Thread(
        target=lambda: results.append(modcache.lookup_or_run(module, X, "k", scope=scope))
    )
    other.start()
    other.join(20)
    assert not other.is_alive()
    assert torch.equal(results[0], 2 * X)
    assert modcache.stats()["stored"] == stored + 1


def _waits_at_large(x: torch.Tensor) -> torch.Tensor:
    if x[0, 0] > 100:
        time.sleep(0.3)
    return x


@scopes
def test_threads_that_miss_one_key_run_once(scope: str) -> None:
    module = known(_waits_at_large, scope)
    large = 200 + X
    # A run of 0.3 s makes others wait for the next one for twenty times as long (run_times.h).
    assert begins(lambda: modcache.lookup_or_run(module, large, "begun", scope=scope))
    before = modcache.stats()
    results: list[torch.Tensor] = []
    call = lambda: results.append(modcache.lookup_or_run(module, large, "k", scope=scope))  # noqa: E731
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 8
    assert all(torch.equal(result, 2 * large) for result in results)
    after = modcache.stats()
    assert after["misses"] == before["misses"] + 1
    assert after["stored"] == before["stored"] + 1


def test_a_module_that_calls_itself_with_its_own_key_ends() -> None:
    depth = 0

    def make(x: torch.Tensor) -> torch.Tensor:
        nonlocal depth
        depth += 1
        if depth == 8:
            return x + modcache.lookup_or_run(module, X, "k", scope="named")  # type: ignore[no-any-return]
        return x

    module = known(make, "named")
    depth = 7
    assert torch.equal(modcache.lookup_or_run(module, X, "k", scope="named"), 4 * X)


def _is_noise_at_large(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x) if x[0, 0] > 100 else x


@scopes
def test_what_a_rule_refuses_is_returned_and_not_stored(scope: str) -> None:
    module = known(_is_noise_at_large, scope)
    large = 200 + X
    stored = modcache.stats()["stored"]
    assert begins(lambda: modcache.lookup_or_run(module, large, "k", scope=scope))
    assert modcache.stats()["stored"] == stored
    assert modcache.stats()["bypassed_impure"] == 1
    assert "random numbers" in state_of(module).refusal.message
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match="strict=true"):
        modcache.lookup_or_run(module, large, "k", scope=scope)
    modcache.configure(strict=False)
    assert torch.equal(modcache.lookup_or_run(module, X, "k", scope=scope), 2 * X)
    assert state_of(module).refusal.message == ""


def test_a_result_with_a_graph_is_returned_with_it() -> None:
    weight = torch.ones((), requires_grad=True)
    trains = threading.Event()
    module = known(lambda x: x * weight if trains.is_set() else x, "named")
    trains.set()
    with torch.enable_grad():
        result = modcache.lookup_or_run(module, X, "k", scope="named")
        assert result.requires_grad
        assert modcache.lookup_or_run(module, X, "k", scope="named").requires_grad
    assert modcache.stats()["bypassed_grad"] == 2


class Learns(nn.Module):
    """Changes its scale at large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 100:
            self.scale.fill_(3)
        return x * self.scale


@scopes
def test_a_module_that_its_run_changes_is_named(scope: str) -> None:
    module = frozen(Learns())
    for number in range(6):
        modcache.lookup_or_run(module, X, f"known {number}", scope=scope)
    stored = modcache.stats()["stored"]
    assert begins(lambda: modcache.lookup_or_run(module, 200 + X, "k", scope=scope))
    assert modcache.stats()["stored"] == stored
    assert "buffer 'scale' of Learns changed" in state_of(module).refusal.message
    assert torch.equal(modcache.lookup_or_run(module, X, "k", scope=scope), 3 * X)


# Stands for a library's module whose method is known to begin with evaluation.
KNOWN = """
class Encodes(nn.Module):
    def encode(self, x):
        self.eval()
        return x * 2, x

    def decode(self, x):
        return x * 2
"""


@pytest.fixture
def encodes() -> Any:
    names: dict[str, Any] = {"nn": nn, "__name__": "sentence_transformers.stand_in"}
    exec(KNOWN, names)
    return names["Encodes"]


def test_a_call_that_begins_with_evaluation_goes_the_ordinary_way(encodes: Any) -> None:
    module = encodes()
    for number in range(6):
        modcache.lookup_or_run(module, X, f"known {number}", scope="named", method="encode")
    module.train()
    call = lambda: modcache.lookup_or_run(module, X, "k", scope="named", method="encode")  # noqa: E731
    assert not begins(call)
    assert not module.training
    before = modcache.stats()
    for _ in range(10):
        call()
    after = modcache.stats()
    assert after["hits_memory"] == before["hits_memory"] + 10
    assert after["stored"] == before["stored"] == 7
    assert after["bypassed_impure"] == 0


def test_a_method_that_was_replaced_may_begin_with_evaluation(
    encodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = encodes()
    call = lambda key: modcache.lookup_or_run(  # noqa: E731
        module, X, key, scope="named", method="decode"
    )
    for number in range(6):
        call(f"known {number}")
    assert begins(lambda: call("k"))
    monkeypatch.setattr(encodes, "decode", encodes.encode)
    module.train()
    assert not begins(lambda: call("other"))
    assert not module.training
    assert modcache.stats()["bypassed_impure"] == 0


class Halves(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Splits(nn.Module):
    def forward(self, x: torch.Tensor) -> Halves:
        return Halves(x[:, :2], x[:, 2:])


def test_a_scripted_module_goes_its_own_way_also_after_an_odd_input() -> None:
    module = torch.jit.script(Splits().eval())
    call = lambda x, key: modcache.lookup_or_run(module, x, key, scope="named")  # noqa: E731
    for number in range(3):
        call(X, f"known {number}")
        with pytest.raises(RuntimeError, match="ndarray"):
            call(X.numpy(), f"array {number}")
    for _ in range(2):
        assert torch.equal(call(X, "k").left, X[:, :2])
    assert modcache.stats()["bypassed_type"] == 0


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


def test_a_mode_that_ends_during_a_call_shows_no_old_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = frozen(Adds())
    for number in range(6):
        modcache.lookup_or_run(module, X, f"known {number}")
    known = state_of(module).known
    assert known is not None

    def another_thread_switches(_: Any) -> Any:
        modcache.set_mode("on")
        return known

    reads = property(another_thread_switches, lambda _, value: None)
    monkeypatch.setattr(ModuleState, "known", reads, raising=False)
    modcache.set_mode("off")
    module.bias.fill_(3)
    assert torch.equal(modcache.lookup_or_run(module, X, "known 0"), X + 3)


def test_a_call_that_nobody_goes_on_with_is_abandoned() -> None:
    from modcache._call.fast_path import Begun, fast_hit

    module = known(lambda x: x, "named")
    begun = fast_hit(module, X, "k", "named", "forward")
    assert type(begun) is Begun
    assert begun.has_run
    assert begun.value is None
    assert begun.scope == "named"
    del begun
    gc.collect()
    begun = fast_hit(module, X, "k", "named", "forward")
    assert begun.address() != 0
    begun.abandon()
    begun.abandon()
    assert torch.equal(modcache.lookup_or_run(module, X, "k", scope="named"), 2 * X)
    with pytest.raises(TypeError, match="Begun"):
        Begun()
    with pytest.raises(TypeError, match="5 arguments"):
        begun.finish(X)


def test_modes_that_always_run_begin_too() -> None:
    module = known(lambda x: x, "named")
    for mode in ("refresh", "verify"):
        with modcache.mode(mode):
            assert begins(lambda: modcache.lookup_or_run(module, X, "k", scope="named"))


def test_inputs_with_gradients_go_the_ordinary_way() -> None:
    module = known(lambda x: x, "named")
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        assert modcache.lookup_or_run(module, x, "other", scope="named").requires_grad
