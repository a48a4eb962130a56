# SPDX-License-Identifier: Apache-2.0
"""Misses and calls in mode `off`: how little of the package runs, and what is still seen.

What is counted are calls of Python functions: time would depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from hits import X, blocks, frozen, functions_called, hit, scripted
from modcache._identity.module_state import state_of
from torch import nn


@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize("key", ["k", ["k"]], ids=["key", "rows"])
@pytest.mark.parametrize("make", [frozen, scripted])
def test_the_mode_off_calls_the_module_and_little_else(
    make: Callable[[nn.Module], nn.Module], key: Any, scope: str
) -> None:
    module = make(nn.Linear(4, 4))
    call = lambda: modcache.lookup_or_run(module, X, key, scope=scope)  # noqa: E731
    for _ in range(6):
        call()
    modcache.flush()
    modcache.set_mode("off")
    before = modcache.stats()
    assert len(functions_called(call)) <= 14
    after = modcache.stats()
    assert after["bypassed_off"] == before["bypassed_off"] + 1
    assert {name for name in after if after[name] != before[name]} == {"bypassed_off"}
    with pytest.raises((ValueError, RuntimeError)):
        modcache.lookup_or_run(module, X, ["a", "b"], scope=scope)


def test_a_module_that_is_only_called_in_mode_off_is_not_looked_at() -> None:
    modcache.set_mode("off")
    module = nn.Linear(4, 4)  # it requires grad
    call = lambda: modcache.lookup_or_run(module, X, "k")  # noqa: E731
    call()
    assert len(functions_called(call)) <= 14
    assert call().requires_grad
    assert modcache.stats()["bypassed_off"] == 3


@pytest.mark.parametrize("result", [None, NotImplemented])
def test_a_result_that_stands_for_something_else_is_returned_in_mode_off(result: object) -> None:
    class Returns(nn.Module):
        runs = 0

        def forward(self, x: torch.Tensor) -> object:
            self.runs += 1
            return result

    module = Returns()
    modcache.set_mode("off")
    for count in range(1, 5):
        assert modcache.lookup_or_run(module, X, "k") is result
        assert module.runs == count
        assert modcache.stats()["bypassed_off"] == count


@pytest.mark.parametrize("key", ["name", "content", None])
def test_a_cached_module_in_mode_off_runs_what_its_class_has_now(key: str | None) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    plain = Doubles()
    options: dict[str, Any] = {} if key is None else {"key": key}
    module: Any = modcache.cached(plain, **options)
    call = lambda: module(X, **({"name": "k"} if key == "name" else {}))  # noqa: E731
    modcache.set_mode("off")
    for _ in range(3):
        assert torch.equal(call(), 2 * X)
    Doubles.forward = lambda self, x: x * 3  # type: ignore[method-assign]
    assert torch.equal(call(), 3 * X)
    plain.compile(backend=lambda graph, _: lambda *inputs: (X * 5,))
    assert torch.equal(call(), 5 * X)
    with pytest.raises(TypeError):
        module()


def test_a_block_does_not_hold_inside_of_a_module_that_runs_in_mode_off() -> None:
    inner = modcache.cached(nn.Linear(4, 4), key="name")
    module = frozen(nn.Sequential(inner))
    modcache.set_mode("off")
    for _ in range(3):
        modcache.lookup_or_run(frozen(nn.Sequential(nn.ReLU())), X, "k")
        with modcache.keys(["k"]):
            modcache.lookup_or_run(module, X, "k")
    with pytest.raises(TypeError, match="name"):
        inner(X)


def test_a_step_that_leaves_no_trace_is_seen_after_a_call_in_mode_off() -> None:
    module = nn.Linear(4, 4)
    with torch.no_grad():
        call = hit(module)
        stale = call()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, fused=True)
    with modcache.mode("off"):
        modcache.lookup_or_run(module, X, "k").sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(call(), stale)
        assert torch.equal(call(), module(X))


@pytest.mark.parametrize(("scope", "most"), [("", 75), ("named", 72)])
def test_a_miss_looks_at_the_module_by_its_snapshot(scope: str, most: int) -> None:
    counts = []
    for count in (1, 40):
        module = blocks(count)
        hit(module, scope=scope)
        with torch.no_grad():
            for key in ("first", "second"):
                miss = lambda: modcache.lookup_or_run(module, X, f"{key} {count}", scope=scope)  # noqa: E731, B023
                called = functions_called(miss)
        counts.append(len(called))
    assert counts[0] == counts[1] <= most


class Counts(nn.Module):
    """Counts calls with large inputs."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.count = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 100:
            if self.what == "count":
                self.count += 1
            else:
                self.seen.add_(1)
        return x * 2


@pytest.mark.parametrize("scope", ["", "named"])
@pytest.mark.parametrize(
    ("what", "named"), [("count", "attribute 'count' of Counts"), ("seen", "buffer 'seen'")]
)
def test_what_a_run_changes_in_a_module_that_was_recognized_is_named(
    what: str, named: str, scope: str
) -> None:
    module = frozen(Counts(what))
    hit(module, scope=scope)
    for row in range(8):
        modcache.lookup_or_run(module, X, f"small {row}", scope=scope)
    assert "_run_looked_at" not in functions_called(
        lambda: modcache.lookup_or_run(module, 200 * X, "large", scope=scope)
    )
    assert modcache.stats()["bypassed_impure"] == 1
    assert named in state_of(module).refusal.message
    stored = modcache.stats()["stored"]
    modcache.lookup_or_run(module, X, "small again", scope=scope)
    assert modcache.stats()["stored"] == stored + 1


class Replaces(nn.Module):
    """Puts another tensor in its buffer's place."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("table", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "equal":
            self.table = self.table.clone()
        elif x[0, 0] > 100:
            self.table.data = self.table + 1
        return x * 2


def test_a_run_may_put_an_equal_tensor_in_ones_place() -> None:
    module = frozen(Replaces("equal"))
    for row in range(10):
        modcache.lookup_or_run(module, X, f"{row}")
    assert modcache.stats()["stored"] == 10


@pytest.mark.parametrize("scope", ["", "named"])
def test_a_tensor_made_under_inference_mode_in_a_run_is_a_change(scope: str) -> None:
    module = frozen(Replaces("data"))
    with torch.inference_mode():
        for row in range(10):
            modcache.lookup_or_run(module, X, f"{row}", scope=scope)
        modcache.lookup_or_run(module, 200 * X, "large", scope=scope)
    assert modcache.stats()["stored"] == 10
    assert modcache.stats()["bypassed_impure"] == 1


def test_rows_count_once_where_the_function_is_not_known() -> None:
    module = nn.Identity()
    module.forward = lambda x: 2 * x  # type: ignore[method-assign]
    x = torch.arange(12.0).reshape(3, 4)
    with torch.no_grad():
        modcache.lookup_or_run(module, x[:2], ["a", "b"], scope="twice")
        modcache.reset_stats()
        modcache.lookup_or_run(module, x, ["a", "b", "c"], scope="twice")
    stats = modcache.stats()
    assert (stats["hits_memory"], stats["misses"]) == (2, 1)


class Listed(nn.Module):
    def forward(self, x: torch.Tensor, items: list[int]) -> torch.Tensor:
        return x * len(items)


def test_rows_of_an_input_that_is_run_whole_are_no_hits() -> None:
    x = torch.arange(16.0).reshape(4, 4)
    with torch.no_grad():
        for keys in (["a", "b", "c", "d"], ["a", "b", "c", "e"]):
            modcache.reset_stats()
            modcache.lookup_or_run(Listed(), (x, [1, 2, 3, 4]), keys, scope="listed")
    stats = modcache.stats()
    assert (stats["hits_memory"], stats["misses"]) == (0, 4)


class HoldsItself(nn.Module):
    def forward(self, x: torch.Tensor) -> list[Any]:
        result: list[Any] = [x]
        result.append(result)
        return result


def test_a_result_that_holds_itself_is_returned_and_not_stored() -> None:
    x = torch.ones(2)
    with torch.no_grad():
        result = modcache.lookup_or_run(HoldsItself(), x, "key", scope="endless")
    assert result[1] is result
    assert modcache.stats()["bypassed_type"] == 1
    endless = [x]
    endless.append(endless)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="nested more than 64 levels deep"):
        modcache.content_key(endless)
