# SPDX-License-Identifier: Apache-2.0
"""The fast path of plain hits: how little runs, and what it must not answer.

What is counted are calls of Python functions: time would depend on the machine.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from hits import FAST, X, blocks, frozen, functions_called, hit, scripted
from modcache._call import fast_path
from modcache._identity import module_state
from torch import nn


def test_the_compiled_part_is_there() -> None:
    assert modcache.build_info()["compiled_part"].endswith(".so")


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_an_eager_hit_runs_no_code_of_ours_for_each_submodule(
    count: int, scope: str, grad: bool
) -> None:
    with torch.set_grad_enabled(grad):
        assert functions_called(hit(blocks(count), scope=scope)) == FAST


def test_a_guard_that_was_left_costs_later_hits_nothing() -> None:
    call = hit(blocks(1))
    with modcache.mode("read"):
        call()
    assert functions_called(call) == FAST


@pytest.mark.parametrize("scope", ["", "named"])
def test_a_scripted_hit_does_not_make_the_module_an_argument(scope: str) -> None:
    call = hit(torch.jit.script(frozen(nn.Linear(4, 4))), scope=scope)
    assert functions_called(call) == FAST


def test_rows_look_at_the_module_once_for_the_batch() -> None:
    small, large = blocks(1), blocks(40)
    batch, ids = torch.ones(8, 4), torch.arange(8)
    called = []
    for module in (small, large):
        call = hit(module)
        for _ in range(6):
            modcache.lookup_or_run(module, batch, ids)
        call = lambda module=module: modcache.lookup_or_run(module, batch, ids)  # noqa: E731
        with torch.no_grad():
            call()
            called.append(functions_called(call))
    assert called[0] == called[1]


KEYS = {
    "texts": lambda count: [f"k{row}" for row in range(count)],
    "numbers": lambda count: list(range(count)),
    "ids": torch.arange,
}


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("kind", sorted(KEYS))
@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_rows_are_one_call_of_the_library(
    make: Callable[[nn.Module], nn.Module], scope: str, kind: str, count: int
) -> None:
    module = make(nn.Linear(4, 4))
    batch, keys = torch.randn(count, 4), KEYS[kind](count)
    call = lambda: modcache.lookup_or_run(module, batch, keys, scope=scope)  # noqa: E731
    for _ in range(6):
        stored = call()
    for counter in ("hits_memory", "hits_disk"):
        before = modcache.stats()[counter]
        assert functions_called(call) == FAST
        assert modcache.stats()[counter] == before + count
        modcache.flush()
        modcache.clear(tier="memory")
    assert torch.equal(call(), stored)


@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_a_hit_on_disk_is_one_call_of_the_library(
    make: Callable[[nn.Module], nn.Module], scope: str
) -> None:
    call = hit(make(nn.Linear(4, 4)), scope=scope)
    stored = call()
    modcache.flush()
    modcache.clear(tier="memory")
    assert functions_called(call) == FAST
    assert modcache.stats()["hits_disk"] == 1
    assert torch.equal(call(), stored)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + y


@pytest.mark.parametrize("key", ["k", ["a", "b"]], ids=["key", "rows"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_a_tuple_of_tensors_is_one_call_of_the_library(
    make: Callable[[nn.Module], nn.Module], key: Any
) -> None:
    module = make(Sum())
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    call = lambda *inputs: modcache.lookup_or_run(module, inputs, key)  # noqa: E731
    for _ in range(6):
        stored = call(x, y)
    misses = modcache.stats()["misses"]
    assert functions_called(lambda: call(x, y)) == FAST
    assert torch.equal(call(x, y), stored)
    assert torch.allclose(stored, module(x, y))
    conflicts = modcache.stats()["key_conflicts"]
    call(x, y[:, :1])  # another shape under the same key
    assert modcache.stats()["key_conflicts"] > conflicts
    assert modcache.stats()["misses"] > misses


def test_a_tensor_for_all_rows_takes_the_full_path() -> None:
    module = frozen(Sum())
    x = torch.randn(2, 4)
    results = []
    for y in (torch.zeros(1, 4), torch.ones(1, 4)):
        for _ in range(6):
            result = modcache.lookup_or_run(module, (x, y), ["a", "b"])
        assert torch.allclose(result, module(x, y))
        results.append(result)
    assert not torch.equal(*results)


def test_rows_that_are_no_plain_hit_take_the_full_path() -> None:
    module = frozen(nn.Linear(4, 4))
    batch = torch.randn(3, 4)
    for _ in range(6):
        modcache.lookup_or_run(module, batch, ["a", "b", "c"], scope="s")
    before = modcache.stats()
    repeated = modcache.lookup_or_run(module, batch[[0, 0, 1]], ["a", "a", "b"], scope="s")
    assert torch.allclose(repeated, module(batch[[0, 0, 1]]))
    assert len(modcache.lookup_or_run(module, batch[:1], ("a", "b")[:1], scope="s")) == 1
    for wrong in (["a"], [], ["a", "b", ""], ["a", "b", 3], ["a", "b", "\ud800"], [1, 2, True]):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            modcache.lookup_or_run(module, batch, wrong, scope="s")
    after = modcache.stats()
    assert after["misses"] == before["misses"]
    assert after["hits_memory"] == before["hits_memory"] + 4


def test_ids_beyond_64_bits_and_strided_ids_are_as_before() -> None:
    module = frozen(nn.Linear(4, 4))
    batch = torch.randn(2, 4)
    ids = torch.tensor([[5, 0], [6, 0]])[:, 0]
    for _ in range(3):
        out = modcache.lookup_or_run(module, batch, ids, scope="s")
    assert torch.equal(modcache.lookup_or_run(module, batch, ["5", "6"], scope="s"), out)
    with pytest.raises((ValueError, OverflowError, RuntimeError, TypeError)):
        modcache.lookup_or_run(module, batch, [2**63, 1], scope="s")


def test_a_library_of_another_version_is_refused() -> None:
    import ctypes

    from modcache._library.compiled_part import guards

    assert guards is not None
    other = (ctypes.c_uint32 * 64)(99)
    with pytest.raises(RuntimeError, match="another libmodcache"):
        guards.connect(ctypes.addressof(other), X, torch.Tensor, nn.Parameter, {}, {}, print)
    with pytest.raises(TypeError, match="7 arguments"):
        guards.connect()  # type: ignore[call-arg]
    assert functions_called(hit(frozen(nn.Linear(4, 4)))) == FAST  # nothing has changed


def test_it_counts_as_any_hit_does() -> None:
    call = hit(blocks(1))
    before = modcache.stats()
    call()
    after = modcache.stats()
    assert after["hits_memory"] == before["hits_memory"] + 1
    assert {name for name in after if after[name] != before[name]} <= {"hits_memory", "saved_us"}


@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_a_module_that_is_trained_again_gives_a_graph(
    scope: str, make: Callable[[nn.Module], nn.Module]
) -> None:
    module = make(nn.Linear(4, 4))
    call = hit(module, scope=scope)
    assert not call().requires_grad
    next(iter(module.parameters())).requires_grad_(True)
    assert call().requires_grad
    with torch.no_grad():
        assert not call().requires_grad


def test_an_input_that_requires_grad_gets_its_graph() -> None:
    module = frozen(nn.Linear(4, 4))
    hit(module, scope="named")
    x = X.clone().requires_grad_(True)
    assert modcache.lookup_or_run(module, x, "k", scope="named").requires_grad


@pytest.mark.parametrize("make", [frozen, scripted])
def test_weights_that_change_are_seen(make: Callable[[nn.Module], nn.Module]) -> None:
    module = make(nn.Linear(4, 4))
    call = hit(module)
    for change in (
        lambda: module.weight.add_(1),
        lambda: module.weight.data.mul_(2),
        lambda: setattr(module.weight, "data", torch.zeros(4, 4)),
        lambda: module.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.ones(4)}),
    ):
        change()
        assert torch.equal(call(), module(X))
        for _ in range(6):
            assert torch.equal(call(), module(X))


@pytest.mark.parametrize("mode", ["off", "refresh", "verify"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_a_mode_that_always_runs_does(mode: str, make: Callable[[nn.Module], nn.Module]) -> None:
    call = hit(make(nn.Linear(4, 4)))
    before = modcache.stats()["hits_memory"]
    with modcache.mode(mode):
        call()
    assert modcache.stats()["hits_memory"] == before
    with modcache.mode("read"):
        call()
    assert modcache.stats()["hits_memory"] == before + 1


def test_an_input_of_another_shape_is_a_conflict() -> None:
    module = frozen(nn.Linear(4, 4))
    hit(module)
    assert modcache.lookup_or_run(module, torch.ones(2, 4), "k").shape == (2, 4)
    assert modcache.stats()["key_conflicts"] == 1


def test_structured_results_are_whole() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x + 1

    assert [part.tolist() for part in hit(frozen(Pair()))()] == [X.tolist(), (X + 1).tolist()]


def test_autocast_is_another_entry() -> None:
    call = hit(frozen(nn.Linear(4, 4)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call().dtype is torch.bfloat16
    assert call().dtype is torch.float32


def test_keys_beyond_ascii_take_the_fast_path_and_mistakes_do_not() -> None:
    module = frozen(nn.Linear(4, 4))
    hit(module, scope="Bär")
    modcache.lookup_or_run(module, X, "π", scope="Bär")
    again = lambda: modcache.lookup_or_run(module, X, "π", scope="Bär")  # noqa: E731
    assert functions_called(again) == FAST
    for wrong in ("", "\ud800"):
        with pytest.raises(ValueError, match="key"):
            modcache.lookup_or_run(module, X, wrong, scope="Bär")
    with pytest.raises(AttributeError, match="no such method"):
        modcache.lookup_or_run(module, X, "k", scope="Bär", method="absent")


def test_what_is_remembered_of_a_scripted_module_goes_with_it() -> None:
    module = torch.jit.script(frozen(nn.Linear(4, 4)))
    hit(module)
    address = id(module)
    assert address in fast_path._held
    del module
    gc.collect()
    assert address not in fast_path._held


def test_the_tensor_behind_an_input_may_be_exchanged_meanwhile() -> None:
    """The library is asked without the GIL; torch refuses an exchange of what is in use."""
    module = frozen(nn.Linear(4, 4))
    inputs, keys = torch.randn(64, 4), list(range(64))
    for _ in range(4):
        stored = modcache.lookup_or_run(module, inputs, keys, scope="s")
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            with contextlib.suppress(RuntimeError):
                torch.utils.swap_tensors(inputs, inputs.clone())

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(2000):
            assert torch.equal(modcache.lookup_or_run(module, inputs, keys, scope="s"), stored)
    finally:
        is_over.set()
        thread.join()


def test_an_interrupt_on_the_way_is_raised() -> None:
    class Interrupted(nn.Linear):
        @property
        def encode(self) -> Any:
            if is_interrupted:
                raise KeyboardInterrupt
            return self.forward

    is_interrupted = False
    module = frozen(Interrupted(4, 4))
    call = hit(module, method="encode", scope="s")
    assert functions_called(call) == FAST
    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        call()


@pytest.mark.parametrize("key", ["k", ["k"]], ids=["key", "rows"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_a_method_that_is_not_there_is_the_same_error_in_mode_off(
    make: Callable[[nn.Module], nn.Module], key: Any
) -> None:
    module = make(nn.Linear(4, 4))
    hit(module)
    errors = []
    for mode in ("on", "off"):
        modcache.set_mode(mode)
        with pytest.raises((AttributeError, RuntimeError)) as raised:
            modcache.lookup_or_run(module, X, key, method="absent")
        errors.append(type(raised.value))
    assert errors[0] is errors[1]


def test_a_module_that_changes_at_every_call_is_written_down_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = frozen(nn.Linear(4, 4))
    made = []
    original = module_state.snapshot_of
    monkeypatch.setattr(module_state, "snapshot_of", lambda *a: (made.append(1), original(*a))[1])
    for count in range(200):
        module.count = 1000 + count
        modcache.fingerprint(module)
    assert 1 <= len(made) <= 8


def test_a_module_that_served_plain_hits_for_a_while_is_soon_known_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(module_state.time, "monotonic", lambda: now_s[0])
    module = frozen(nn.Linear(4, 4))
    for epoch in range(12):
        module.epoch = 1000 + epoch
        for _ in range(6):
            modcache.lookup_or_run(module, X, "k")
        assert module_state.state_of(module).known is not None, epoch
        now_s[0] += 5


def doubled(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x * times


def test_a_hit_of_a_cached_function_is_one_of_its_module() -> None:
    function = modcache.cached(doubled, key="name")
    for _ in range(6):
        function(X, name="k")
    made_of_call = ["cached", "__call__", "of_call", "_checked", "looked_up_in"]
    assert functions_called(lambda: function(X, name="k")) == [*made_of_call, *FAST]


@pytest.mark.parametrize("key", ["k", ["k"]], ids=["key", "rows"])
def test_a_cached_function_is_identified_once_a_call(key: Any) -> None:
    function = modcache.cached(doubled, key="name")
    for _ in range(6):
        function(X, 3, name=key)
    called = functions_called(lambda: function(X, 3, name=key))
    assert [called.count(name) for name in ("recognize", "fingerprint_of")] == [1, 1]
