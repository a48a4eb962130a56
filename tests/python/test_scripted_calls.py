# SPDX-License-Identifier: Apache-2.0
"""Calls of scripted modules with one key: the library makes them in full, without Python."""

from __future__ import annotations

import gc
import threading
from typing import Any

import modcache
import pytest
import torch
from hits import FAST, X, functions_called, scripted
from torch import Tensor, nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x[0, 0] == 13):
            raise ValueError("thirteen is not encoded")
        return self.linear(x)

    @torch.jit.export
    def parts(self, x: Tensor) -> tuple[Tensor, list[int]]:
        return self.linear(x), [1, 2]

    @torch.jit.export
    def both(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x) + y


@pytest.fixture
def module() -> Any:
    """A module that has been called before, so that the library holds it."""
    made = scripted(Encoder())
    for method in ("forward", "parts"):
        modcache.lookup_or_run(made, X, "first", method=method)
    modcache.lookup_or_run(made, (X, X), "first", method="both")
    return made


def looked_up(module: Any, key: str, input: Any = X, **options: Any) -> Any:
    return modcache.lookup_or_run(module, input, key, **options)


@pytest.mark.parametrize("scope", ["", "named"])
def test_a_miss_is_one_call_of_the_library(module: Any, scope: str) -> None:
    found: list[Any] = []
    called = functions_called(lambda: found.append(looked_up(module, "new", scope=scope)))
    assert called == FAST
    assert torch.equal(found[0], module(X))
    assert modcache.stats()["misses"] == 4
    assert torch.equal(looked_up(module, "new", scope=scope), found[0])
    assert modcache.stats()["hits_memory"] == 1


def test_structured_results_are_those_of_the_method(module: Any) -> None:
    for _ in range(2):
        called = functions_called(lambda: looked_up(module, "new", method="parts"))
        assert called == FAST
        tensor, numbers = looked_up(module, "new", method="parts")
        assert torch.equal(tensor, module(X))
        assert numbers == [1, 2]
    assert modcache.stats()["misses"] == 4


def test_a_tuple_is_the_arguments(module: Any) -> None:
    for _ in range(2):
        assert torch.equal(
            looked_up(module, "new", (X, 2 * X), method="both"), module.both(X, 2 * X)
        )
    assert functions_called(lambda: looked_up(module, "new", (X, 2 * X), method="both")) == FAST
    assert modcache.stats()["misses"] == 4


def test_the_modules_own_exception_is_raised_and_the_module_has_run_once(module: Any) -> None:
    def message(call: Any) -> tuple[type, str]:
        with pytest.raises(Exception, match="thirteen") as raised:
            call()
        return type(raised.value), str(raised.value)

    stats = modcache.stats()
    kind, text = message(lambda: looked_up(module, "new", 13 * X))
    assert (kind, text.splitlines()[-1]) == (
        (direct := message(lambda: module(13 * X)))[0], direct[1].splitlines()[-1],
    )  # fmt: skip
    assert modcache.stats()["stored"] == stats["stored"]
    assert torch.equal(looked_up(module, "new"), module(X)), "nothing is left of the failed call"


def test_the_callers_mistakes_are_reported_as_before(module: Any) -> None:
    for key, error in (("", ValueError), (3, TypeError), ("\ud800", ValueError)):
        with pytest.raises(error):
            looked_up(module, key)
    with pytest.raises((AttributeError, RuntimeError)):
        looked_up(module, "new", method="absent")
    with pytest.raises(RuntimeError):
        looked_up(module, "new", method="both")
    with pytest.raises(RuntimeError):
        looked_up(module, "new", (X, X, X))


@pytest.mark.parametrize("mode", ["refresh", "verify", "read"])
def test_other_modes_run_as_they_say(module: Any, mode: str) -> None:
    stored = looked_up(module, "new")
    before = modcache.stats()
    with modcache.mode(mode):
        assert torch.equal(looked_up(module, "new"), stored)
        assert torch.equal(looked_up(module, f"under {mode}", 2 * X), module(2 * X))
    after = modcache.stats()
    assert after["hits_memory"] - before["hits_memory"] == (1 if mode == "read" else 0)
    assert after["verify_differences"] == 0
    with modcache.mode("read"):
        looked_up(module, f"under {mode}", 2 * X)
    is_kept = mode == "refresh"
    assert modcache.stats()["misses"] - after["misses"] == (0 if is_kept else 1)


def test_a_result_with_a_graph_is_returned_with_it() -> None:
    module = torch.jit.script(Encoder())
    for key in ("a", "b", "c"):
        result = looked_up(module, key)
        assert result.requires_grad
        result.sum().backward()
    assert modcache.stats()["stored"] == 0


def test_weights_that_change_are_seen(module: Any) -> None:
    before = looked_up(module, "new")
    with torch.no_grad():
        module.linear.bias.add_(1)
    assert torch.allclose(looked_up(module, "new"), before + 1)


def test_threads_get_their_own_results(module: Any) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for step in range(60):
            value = float(number * 1000 + step + 20)
            x = torch.full((1, 4), 13.0 if step % 7 == 0 else value)
            try:
                tensor, numbers = looked_up(module, f"{value}", x, method="parts")
                looked_up(module, f"{value}", x)
            except Exception as error:
                if "thirteen" not in str(error) or step % 7:
                    wrong.append(error)
                continue
            if step % 7 == 0 or numbers != [1, 2] or not torch.allclose(tensor, module(x)):
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@torch.jit.script
class NoModule:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@torch.jit.script
def of_no_module(x: Tensor) -> Tensor:
    return torch.ops.cache.lookup_or_run(NoModule(3), x, "new", scope="shared")  # type: ignore[no-any-return]


def test_a_class_that_is_no_module_is_refused_whatever_is_stored(module: Any) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must be a TorchScript module"):
            of_no_module(X)
        looked_up(module, "new", scope="shared")


def test_a_module_that_is_gone_leaves_nothing_to_call(module: Any) -> None:
    x = torch.full((1, 4), 2.0)
    for number in range(5):
        other = scripted(Encoder())
        for _ in range(3):
            assert torch.equal(looked_up(other, f"{number}", x), other(x))
        del other
        gc.collect()
    assert modcache.stats()["key_conflicts"] == 0
