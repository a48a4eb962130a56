# SPDX-License-Identifier: Apache-2.0
"""Stale or cut-off results that once happened, one test each."""

import os
import threading
import weakref
from typing import Any

import modcache
import pytest
import torch
from modcache._code import code_of_class
from models import frozen
from torch import nn

X = torch.ones(3)


def looked_up(module: Any, x: Any = X, key: str = "k") -> torch.Tensor:
    result: torch.Tensor = modcache.lookup_or_run(module, x, key)
    return result


FORMS = pytest.mark.parametrize("form", [lambda m: m, torch.jit.script], ids=["eager", "scripted"])


@FORMS
def test_a_large_parameter_is_replaced(form: Any) -> None:
    """The old one's samples lay in memory that had been given back."""
    module = form(frozen(nn.Linear(2000, 2000, bias=False)))
    x = torch.ones(1, 2000)
    looked_up(module, x)
    module.weight = nn.Parameter(torch.zeros(2000, 2000), requires_grad=False)
    assert torch.equal(looked_up(module, x), module(x))


@FORMS
def test_a_write_without_trace_beside_one_with_a_version(form: Any) -> None:
    module = form(frozen(nn.Linear(3, 3)))
    looked_up(module)
    module.weight.data.mul_(2)
    module.bias.copy_(module.bias.clone())
    for _ in range(3):
        assert torch.equal(looked_up(module), module(X))


@FORMS
def test_a_write_without_trace_to_half_of_a_tensor(form: Any) -> None:
    module = form(frozen(nn.Linear(64, 64, bias=False)))
    x = torch.ones(64)
    looked_up(module, x)
    module.weight.data[:32].mul_(2)
    # Samples rotate: after as many calls as a tensor has samples the write has been seen.
    for _ in range(8):
        looked_up(module, x)
    assert torch.equal(looked_up(module, x), module(x))


@FORMS
def test_weights_in_channels_last_are_sampled(form: Any) -> None:
    conv = nn.Conv2d(4, 4, 3, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module = form(frozen(conv))
    x = torch.ones(1, 4, 5, 5)
    looked_up(module, x)
    for parameter in module.parameters():
        parameter.data.mul_(2)
    assert torch.equal(looked_up(module, x), module(x))


@FORMS
def test_a_fused_step_to_a_few_rows_outside_the_cache(form: Any) -> None:
    embedding = nn.Embedding(1000, 16)
    module = form(embedding)
    optimizer = torch.optim.Adam(embedding.parameters(), lr=0.1, fused=True)
    rows = torch.arange(50) + 100
    for _ in range(3):
        embedding(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            assert torch.equal(looked_up(module, rows), embedding(rows))


@torch.jit.interface
class Stage(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Scales(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class WithStage(nn.Module):
    stage: Stage

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stage.forward(x)


def test_a_submodule_behind_an_interface_is_swapped_for_another_class() -> None:
    module = torch.jit.script(WithStage(Doubles()))
    looked_up(module)
    for factor in (5.0, 7.0):
        module.stage = torch.jit.script(Scales(factor))
        assert torch.equal(looked_up(module), X * factor)


class CallsPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    @torch.jit.ignore
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)


def test_code_that_calls_python_is_not_cached_without_a_scope(counted: Any) -> None:
    module = torch.jit.script(CallsPython())
    looked_up(module)
    module.factor = 5.0
    assert torch.equal(looked_up(module), X * 5)
    assert counted() == {"bypassed_impure": 2}


def test_a_refresh_holds_for_calls_that_run_beside_the_hashing() -> None:
    module = torch.jit.script(frozen(nn.Linear(4000, 4000, bias=False)))
    x = torch.ones(1, 4000)
    looked_up(module, x)
    module.weight.data[1::2].mul_(2)
    modcache.refresh_fingerprint(module)
    expected = module(x)
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.append(looked_up(module, x))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [torch.allclose(result, expected) for result in results] == [True] * 4


class UsesOneOfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 3).requires_grad_(False)
        self.other = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        y: torch.Tensor = self.used(x)
        if both:
            y = self.other(y)
        return y


@FORMS
def test_a_graph_is_not_cut_off_when_another_parameter_is_unfrozen(form: Any) -> None:
    module = form(UsesOneOfTwo())
    assert not looked_up(module, (X, False)).requires_grad
    for parameter in module.used.parameters():
        parameter.requires_grad_(True)
    assert looked_up(module, (X, False)).requires_grad


@FORMS
def test_a_graph_is_not_cut_off_when_other_arguments_ask_for_it(form: Any) -> None:
    module = form(UsesOneOfTwo())
    with torch.no_grad():
        looked_up(module, (X, True))
    assert not looked_up(module, (X, False)).requires_grad
    assert looked_up(module, (X, True)).requires_grad


def test_hooks_of_a_scripted_module_run() -> None:
    module = Doubles()

    def times_nine(self: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output * 9

    module.register_forward_hook(times_nine)
    scripted = torch.jit.script(module)
    assert torch.equal(looked_up(scripted), X * 18)
    assert torch.equal(looked_up(scripted), X * 18)


def test_x_and_a_tuple_of_x_are_one_call(counted: Any) -> None:
    module = torch.jit.script(Doubles())
    looked_up(module, X)
    looked_up(module, (X,))
    assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}


def test_tensors_stay_swappable() -> None:
    module = frozen(nn.Linear(3, 3))
    looked_up(module)
    torch.utils.swap_tensors(module.weight, nn.Parameter(torch.ones(3, 3), requires_grad=False))
    assert torch.equal(looked_up(module), module(X))


def test_clear_makes_no_directory_and_respects_the_mode(tmp_path: Any) -> None:
    there = tmp_path / "new"
    modcache.configure(dir=there)
    assert modcache.clear() == 0
    assert not there.exists()
    looked_up(torch.jit.script(Doubles()))
    modcache.set_mode("read")
    assert modcache.clear() == 0
    modcache.set_mode("on")
    assert looked_up(torch.jit.script(Doubles())) is not None
    modcache.clear(tier="memory")
    assert looked_up(torch.jit.script(Doubles())) is not None
    assert modcache.stats()["hits_disk"] == 1
    assert modcache.clear() == 1
    assert looked_up(torch.jit.script(Doubles())) is not None
    assert modcache.stats()["misses"] == 2


def test_threads_of_a_forked_child_do_not_wait_for_those_of_its_parent() -> None:
    started, may_end = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            started.set()
            may_end.wait(20)
            return x

    parents = [
        threading.Thread(
            target=modcache.lookup_or_run, args=(Waits(), X, "k"), kwargs={"scope": "w"}
        )
        for _ in range(3)
    ]
    for thread in parents:
        thread.start()
    started.wait(20)
    child = os.fork()
    if child == 0:
        may_end.set()
        for _ in range(3):
            threads = [threading.Thread(target=looked_up, args=(Doubles(),)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            if any(thread.is_alive() for thread in threads):
                os._exit(1)
        os._exit(0)
    may_end.set()
    for thread in parents:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0


class WithSlot(nn.Module):
    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_slot_of_a_module_is_an_attribute_of_it() -> None:
    module = frozen(WithSlot())
    for _ in range(6):
        looked_up(module)
    module.scale = 3.0
    assert torch.equal(looked_up(module), module(X))


class Kind(type):
    scale = 2.0


class OfAKind(nn.Module, metaclass=Kind):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * type(self).scale


def test_the_class_of_its_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = frozen(OfAKind())
    for _ in range(6):
        looked_up(module)
    monkeypatch.setattr(Kind, "scale", 3.0)
    assert torch.equal(looked_up(module), module(X))


def test_a_new_parameter_at_the_address_of_the_old_over_the_same_storage() -> None:
    """Its version counter began anew, and came to what the old one's had been."""
    module: Any = frozen(nn.Linear(64, 64, bias=False))
    x = torch.ones(64)
    for number in range(50):
        looked_up(module, x)
        values = module.weight.data
        del module.weight
        values[number, number] = 100.0 + number
        module.weight = nn.Parameter(values, requires_grad=False)
        assert torch.equal(looked_up(module, x), module(x))


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor


class ByAddress(nn.Module):
    """As filelock and others register objects: each under its own id."""

    def __init__(self, *factors: float, weak: bool) -> None:
        super().__init__()
        self.scales = [Scale(factor) for factor in factors]
        self.by_id: Any = weakref.WeakValueDictionary() if weak else {}
        self.by_id.update({id(scale): scale for scale in self.scales})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.by_id.values():
            x = x * scale.factor
        return x


@pytest.mark.parametrize("weak", [False, True])
def test_keys_that_are_the_addresses_of_their_values_tell_no_processes_apart(weak: bool) -> None:
    module, again = ByAddress(2.0, 3.0, weak=weak), ByAddress(2.0, 3.0, weak=weak)
    assert modcache.fingerprint(module) == modcache.fingerprint(again)
    assert modcache.fingerprint(module) != modcache.fingerprint(ByAddress(2.0, 4.0, weak=weak))
    looked_up(module)
    module.scales[1].factor = 5.0
    assert torch.equal(looked_up(module), module(X))


def test_other_numbers_as_keys_count() -> None:
    module, other = ByAddress(2.0, weak=False), ByAddress(2.0, weak=False)
    module.by_id, other.by_id = {1: module.scales[0]}, {2: other.scales[0]}
    assert modcache.fingerprint(module) != modcache.fingerprint(other)


class Asserting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x is not None
        return x + 1


def test_an_assert_that_pytest_rewrote_leads_nowhere() -> None:
    """It led to what pytest holds: the running test, and with it all others and their code."""
    assert "@pytest_ar" in Asserting.forward.__code__.co_names
    assert [value() for value in code_of_class(Asserting).packaged] == []
