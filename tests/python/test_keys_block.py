# SPDX-License-Identifier: Apache-2.0
"""modcache.keys: a block gives its keys to every cached call inside, and to no other."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import modcache
import pytest
import torch
from keyed_modules import (
    HIT,
    IDS,
    ONCE,
    OUTSIDE,
    Codec,
    Decorated,
    Growth,
    Pipeline,
    Tower,
    X,
    Y,
    doubled,
    plain,
    tower,
)


@pytest.mark.parametrize("make", [tower, Decorated, lambda: doubled, lambda: Codec().encode])
def test_a_block_gives_the_keys_of_the_rows(counted: Growth, make: Any) -> None:
    target = make()
    want = plain(target, X)
    counted()
    with modcache.keys(IDS):
        assert torch.equal(target(X), want)
    assert counted() == ONCE
    with modcache.keys(["2", "0"]):
        assert torch.equal(target(X[[2, 0]]), want[[2, 0]])
    assert counted() == {"hits_memory": 2}


def test_a_tower_deep_in_a_pipeline_is_cached(counted: Growth) -> None:
    pipeline = Pipeline(tower())
    for expected in (ONCE, HIT):
        with modcache.keys([10, 11, 12]):
            pipeline(X).sum().backward()
        assert counted() == expected
    assert modcache.lookup_or_run(pipeline.tower, X, [10, 11, 12]).shape == (3, 2)
    assert counted() == HIT


def test_one_key_is_for_the_whole_result(counted: Growth) -> None:
    target = tower()
    with modcache.keys("train/1"):
        first = target(X)
        assert torch.equal(target(X), first)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert modcache.contains(modcache.fingerprint(target), "train/1")


def test_a_key_of_its_own_counts_more(counted: Growth) -> None:
    by_name = modcache.cached(Tower(), key="ids", freeze=True)
    by_content = modcache.cached(by_name, key=modcache.content_keys)
    with modcache.keys(["a", "b", "c"]):
        by_name(X, ids=IDS)
        assert counted() == ONCE
        by_name(X)
        assert counted() == ONCE
        by_content(X)
        assert counted() == ONCE
    assert modcache.explain(by_name, X, ["a", "b", "c"]).status == "hit"
    with pytest.raises(TypeError, match="needs the keyword ids"):
        by_name(X)


# Outside.


def test_outside_it_runs_uncached_is_counted_and_warned_about(
    counted: Growth, capfd: pytest.CaptureFixture[str]
) -> None:
    class Warned(Tower):
        """Is warned about here alone: a process warns once of each class."""

    target = modcache.cached(Warned(), freeze=True)
    want = plain(target, X)
    counted()
    for _ in range(2):
        assert torch.equal(target(X), want)
        assert counted() == OUTSIDE
    assert doubled(X).equal(X * 2)
    assert counted() == OUTSIDE
    modcache.flush()
    messages = capfd.readouterr().err
    assert (
        messages.count(
            "not caching Warned.forward: outside of any `with modcache.keys(ids):` block"
        )
        == 1
    )


def test_outside_it_is_an_error_if_strict() -> None:
    target = tower()
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match="outside of any `with modcache"):
        target(X)
    with modcache.mode("off"):
        target(X)


def test_a_part_changes_nothing_outside(counted: Growth) -> None:
    target = tower()
    with modcache.keys(part="negative"):
        target(X)
        assert counted() == OUTSIDE
        with modcache.keys(IDS):
            target(X)
    assert counted() == ONCE
    assert modcache.explain(target, X, IDS).status == "hit"


# Runs.


def test_no_block_holds_while_a_cached_module_runs(counted: Growth) -> None:
    inner = tower()
    outer = modcache.cached(Pipeline(inner), scope="outer@1", freeze=True)
    want = plain(outer, X)
    counted()
    with modcache.keys(IDS[:1]):
        outer(X[:1])
    assert counted() == {"misses": 1, "stored": 1}
    with modcache.keys(IDS):  # runs on two of three rows
        assert torch.allclose(outer(X), want)
        assert counted() == {"hits_memory": 1, "misses": 2, "stored": 2}
        inner(X)
        assert counted() == ONCE


class Twice(Pipeline):
    """Calls its tower twice, with one block around."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tower(x) + self.tower(x * 2))  # type: ignore[no-any-return]


def _with_lock() -> Any:
    pipeline = Twice(tower()).requires_grad_(False)
    pipeline.lock = threading.Lock()
    pipeline.forward = functools.partial(_locked, pipeline)  # type: ignore[method-assign]
    return pipeline


def _locked(pipeline: Any, x: torch.Tensor) -> torch.Tensor:
    with pipeline.lock:
        return type(pipeline).forward(pipeline, x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "counter"),
    [(lambda: Twice(tower()), "bypassed_grad"), (_with_lock, "bypassed_identity")],
)
def test_no_block_holds_in_a_module_whose_result_is_not_kept(
    counted: Growth, make: Any, counter: str
) -> None:
    outer = make()
    want = plain(outer, X)
    counted()
    for _ in range(3):
        with modcache.keys(IDS):
            found = modcache.lookup_or_run(outer, X, IDS)
        assert torch.equal(found, want)
        assert counted() == {counter: 3}


class Refusing(Twice):
    """Takes an argument that no address has."""

    def forward(self, x: torch.Tensor, _: object) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)


def test_no_block_holds_where_the_input_is_refused(counted: Growth) -> None:
    with modcache.keys(IDS):
        modcache.lookup_or_run(Refusing(tower()), (X, object()), IDS)
    assert counted() == {"bypassed_type": 3}


def test_an_exception_of_the_module_is_its_own_and_can_be_tried_again() -> None:
    class Failing(Tower):
        fails = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("no")
            return super().forward(x)

    target = modcache.cached(Failing(), freeze=True)
    with modcache.keys(IDS):
        with pytest.raises(ValueError, match=r"^no$"):
            target(X)
        target.fails = False
        assert torch.equal(target(Y), plain(target, Y))


# Faces.


def test_it_is_a_decorator(counted: Growth) -> None:
    target = tower()

    @modcache.keys(["a", "b", "c"], part="left")
    def with_these(x: torch.Tensor) -> torch.Tensor:
        """Encodes."""
        return target(x)  # type: ignore[no-any-return]

    class Model:
        @modcache.keys(lambda batch: batch["ids"])
        def step(self, batch: dict[str, torch.Tensor], number: int = 0) -> torch.Tensor:
            return target(batch["x"])  # type: ignore[no-any-return]

    assert with_these.__doc__ == "Encodes."
    with_these(X)
    with_these(Y)
    assert counted() == {"misses": 6, "stored": 6, "key_conflicts": 3}
    for _ in range(2):
        Model().step({"x": X, "ids": IDS}, number=2)
    assert counted() == ONCE | HIT


def test_a_pickle_and_a_copy_are_cached_too(counted: Growth) -> None:
    first = tower()
    with modcache.keys(IDS):
        first(X)
        counted()
        for again in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
            again(X)
            assert counted() == HIT


def test_the_keys_are_those_of_when_it_was_made(counted: Growth) -> None:
    target, ids = tower(), IDS.clone()
    block = modcache.keys(ids)
    ids += 100
    with block:
        target(X)
        assert modcache.explain(target, X).keys == ["0", "1", "2"]


async def _coroutine() -> None: ...


def _of_one(x: int) -> None: ...


def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("made", "error", "says"),
    [
        (lambda: modcache.keys(), TypeError, "needs keys, one per row, or part"),
        (lambda: modcache.keys(1.5), TypeError, "key must be a str, or one key per row"),
        (lambda: modcache.keys([1, "a"]), TypeError, "either all str or all int"),
        (lambda: modcache.keys(["a", ""]), ValueError, "a key is empty"),
        (lambda: modcache.keys(IDS.float()), ValueError, "int64 tensor of one dimension"),
        (lambda: modcache.keys(IDS[0]), ValueError, "int64 tensor of one dimension"),
        (lambda: modcache.keys(IDS, part=1), TypeError, "part must be a str"),
        (lambda: modcache.keys(IDS)(_coroutine), TypeError, "decorates functions .* got _corout"),
        (lambda: modcache.keys(IDS)(_generator), TypeError, "decorates functions .* got _gener"),
        (lambda: modcache.keys(IDS)(Tower), TypeError, "decorates functions .* got Tower"),
        (lambda: modcache.keys(IDS)(staticmethod(plain)), TypeError, "below @staticmethod"),
        (lambda: modcache.keys(lambda x: x).__enter__(), TypeError, "for the decorator"),
        (lambda: modcache.keys(lambda a, b, c: a)(_of_one), TypeError, "takes a, b, c"),
        (lambda: modcache.explain(Tower(), X), TypeError, "explain needs a key, or `with"),
        (lambda: modcache.fill(tower(), [X]), TypeError, "fill needs key="),
    ],
)
def test_mistakes_are_named(made: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        made()


def test_a_number_of_keys_that_does_not_fit(counted: Growth) -> None:
    target = tower()
    with modcache.keys(IDS):
        for x in (X[:2], torch.cat([X, X])):
            with pytest.raises(ValueError, match=r"3 keys were given[^\0]*those of the block"):
                target(x)
        target(X)
    assert counted() == ONCE
