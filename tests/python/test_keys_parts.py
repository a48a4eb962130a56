# SPDX-License-Identifier: Apache-2.0
"""Parts of modcache.keys, and second calls of one module in one block."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from keyed_modules import (
    HIT,
    IDS,
    ONCE,
    Decorated,
    Growth,
    Pipeline,
    Tower,
    X,
    Y,
    doubled,
    held,
    plain,
    tower,
)
from modcache._call import registered
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_a_second_call_with_another_input_needs_a_part(counted: Growth) -> None:
    target = tower()
    with modcache.keys(IDS):
        first = target(X)
        counted()
        with pytest.raises(ValueError, match=r'a second time.*keys\(part="negative"\)'):
            target(Y)
        assert not counted()
        with modcache.keys(part="negative"):
            second = target(Y)
            assert counted() == ONCE
            with pytest.raises(ValueError, match="part 'negative'"):
                target(X)
        assert torch.equal(target(X), first)
        with modcache.keys(part="negative"):
            assert torch.equal(target(Y), second)
        assert counted() == {"hits_memory": 6}
    with modcache.keys(IDS, part="negative"):
        assert torch.equal(target(Y), second)
    assert counted() == HIT
    assert torch.equal(second, plain(target, Y))


def test_calls_whose_input_is_never_looked_up_need_no_part(counted: Growth) -> None:
    class Unknown:
        def __init__(self, scale: float) -> None:
            self.scale = scale

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: Any = None) -> torch.Tensor:
            return x if by is None else x * by.scale

    target = modcache.cached(Scaled(), freeze=True)
    with modcache.keys(IDS):
        for x in (X, Y):
            assert torch.equal(target(x, Unknown(2.0)), x * 2)
        assert counted() == {"bypassed_type": 6}
        assert torch.equal(target(X), X)
        assert torch.equal(target(Y, Unknown(3.0)), Y * 3)
        with pytest.raises(ValueError, match="a second time"):
            target(Y)


def test_the_text_of_a_part() -> None:
    assert held() is None
    with modcache.keys(["train/7"], part="left"):
        assert held() == ["train/7\x1fpart=left"]
        with modcache.keys(part="negative"):
            assert held() == ["train/7\x1fpart=left\x1fpart=negative"]
        with modcache.keys([7]):
            assert held() == ["7"]
    with modcache.keys("a"), modcache.keys(part="b"):
        assert held() == ["a\x1fpart=b"]
    for key, part in (("a\x1fpart=b", ""), ("a", "b\x1f")):
        with pytest.raises(ValueError, match=r"U\+001F|x1fpart"):
            modcache.keys([key], part=part)


def test_what_was_stored_under_a_part_is_filled_and_cleared_by_its_text(counted: Growth) -> None:
    target = tower()
    keys = [f"coco/{number}\x1fpart=left" for number in range(3)]
    assert modcache.fill(target, [X], key=lambda _: keys, progress=False).runs == 3
    counted()
    with modcache.keys([f"coco/{number}" for number in range(3)], part="left"):
        target(X)
    assert counted() == HIT
    assert modcache.clear(prefix="coco/") == 3


def test_calls_with_the_same_tensors_are_no_second_call(counted: Growth) -> None:
    target = tower()
    values = X.clone()
    values[0, 0] = float("nan")
    with modcache.keys(IDS):
        target(values)
        counted()
        for again in (values, values.clone(), values.detach(), values.view(3, 4)):
            target(again)
            assert counted() == HIT
        changed = values.clone()
        changed[0, 0] = 1.0
        with pytest.raises(ValueError, match="a second time"):
            target(changed)
        with pytest.raises(ValueError, match="a second time"):
            target(values.double().to(torch.bfloat16).float())
        values.mul_(2)
        with pytest.raises(ValueError, match="a second time"):
            target(values)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_tensor_that_is_written_to_is_another_input(counted: Growth, context: Any) -> None:
    target = tower()
    with context(), modcache.keys(IDS):
        values = X.clone()
        target(values)
        target(values)
        assert counted() == ONCE | HIT
        values[0, 0] += 1
        with pytest.raises(ValueError, match="a second time"):
            target(values)


@modcache.cached(scope="totals@1")
def total(x: Any) -> torch.Tensor:
    values = x.values if isinstance(x, Box) else x
    return torch.tensor([[int(np.asarray(value).sum())] for value in values])


class Box:
    """An argument of a class that says what it is made of."""

    def __init__(self, values: Any) -> None:
        self.values = values


def _array(fill: int) -> Any:
    return np.full((3, 2), fill, dtype=np.int64)


def _images(fill: int) -> Any:
    image = pytest.importorskip("PIL.Image")
    return [image.new("L", (1, 1), fill + row) for row in range(3)]


def _set_array(value: Any) -> None:
    value[0, 0] += 1


def _set_pixel(value: Any) -> None:
    value[0].putpixel((0, 0), 99)


def _set_box(value: Box) -> None:
    value.values = value.values + 1


@pytest.mark.parametrize(
    ("make", "write"),
    [
        (_array, _set_array),
        (_images, _set_pixel),
        (lambda fill: Box(_array(fill)), lambda value: _set_array(value.values)),
        (lambda fill: Box(torch.full((3, 2), fill)), _set_box),
    ],
)
def test_what_is_edited_in_place_is_another_input(
    monkeypatch: pytest.MonkeyPatch, counted: Growth, make: Any, write: Any
) -> None:
    monkeypatch.setattr(registered, "_registered", {})
    modcache.register_value(Box, lambda box: ([box.values], None), lambda parts, _: Box(*parts))
    modcache.configure(match="none")
    with modcache.keys(IDS):
        value = make(1)
        first = total(value)
        for again in (value, make(1)):
            assert torch.equal(total(again), first)
        assert counted() == {**ONCE, "hits_memory": 6}
        write(value)
        with pytest.raises(ValueError, match="a second time"):
            total(value)
        with modcache.keys(part="edited"):
            assert not torch.equal(total(value), first)


def test_zeros_of_both_signs_differ() -> None:
    with modcache.keys(IDS):
        doubled(torch.zeros(3))
        with pytest.raises(ValueError, match="a second time"):
            doubled(-torch.zeros(3))


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("key", [None, "cache_key"])
def test_a_replay_of_gradient_checkpointing_runs_plainly(
    counted: Growth, use_reentrant: bool, key: str | None
) -> None:
    named = {} if key is None else {"key": key}
    pipeline = Pipeline(modcache.cached(Tower(), freeze=True, **named))
    x = X.clone().requires_grad_(use_reentrant)
    modcache.configure(strict=True, match="none")
    with modcache.keys(IDS), torch.no_grad():
        pipeline(X)
    with modcache.mode("off"), modcache.keys(IDS):
        pipeline(X).sum().backward()
    want = pipeline.head.weight.grad
    counted()

    def step(x: torch.Tensor) -> torch.Tensor:
        return pipeline(x.detach() * 1)  # type: ignore[no-any-return]

    for around in (modcache.keys(IDS + 100), modcache.keys(part="b"), contextlib.nullcontext()):
        pipeline.zero_grad()
        with modcache.keys(IDS):
            loss = checkpoint(step, x, use_reentrant=use_reentrant).sum()
        assert counted() == HIT
        with around:
            loss.backward()
        assert not counted()
        assert torch.equal(pipeline.head.weight.grad, want)


def test_copies_of_a_module_are_one_module(counted: Growth) -> None:
    first = tower()
    other = copy.deepcopy(first)
    third = modcache.cached(first)
    with modcache.keys(IDS):
        first(X)
        for again in (other, third):
            with pytest.raises(ValueError, match="a second time"):
                again(Y)
            assert torch.equal(again(X), first(X))
        another = tower()
        another(Y)
        Decorated()(Y)
    assert counted()["misses"] == 9


def test_modules_under_one_name_are_one_module() -> None:
    first = modcache.cached(Tower(), scope="towers@1", freeze=True)
    other = modcache.cached(nn.Linear(4, 2), scope="towers@1", freeze=True)
    with modcache.keys(IDS):
        first(X)
        with pytest.raises(ValueError, match="a second time"):
            other(Y)


def test_other_methods_and_arguments_are_other_calls(counted: Growth) -> None:
    @modcache.cached
    def scaled(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return x * factor

    with modcache.keys(IDS):
        scaled(X)
        scaled(X, 2.0)
        doubled(Y)
        assert counted()["misses"] == 9
        for _ in range(2):
            scaled(X, np.float32(0.5))
        assert counted() == {**ONCE, **HIT}


def test_with_mode_off_a_second_call_is_none(counted: Growth) -> None:
    target = tower()
    with modcache.keys(IDS):
        with modcache.mode("off"):
            target(X)
            target(Y)
        assert counted() == {"bypassed_off": 6}
        target(X)  # nothing was stored before
        assert counted() == ONCE


def test_a_call_under_a_transform_is_no_second_call(counted: Growth) -> None:
    target = tower()
    with modcache.keys(IDS):
        for _ in range(2):
            torch.func.vmap(target)(torch.stack([X, Y]))
        assert counted() == {"bypassed_type": 6}
        target(X)
        torch.func.vmap(target)(torch.stack([X, Y]))
    assert counted() == {"bypassed_type": 3, **ONCE}


def test_ignored_arguments_make_no_other_input(counted: Growth) -> None:
    class Labelled(Tower):
        def forward(
            self, x: torch.Tensor, labels: Any = None, scale: Any = None, **more: Any
        ) -> torch.Tensor:
            return super().forward(x)

    target = modcache.cached(Labelled(), freeze=True, ignore="labels")
    calls = [((X, IDS), {}), ((X,), {"labels": IDS + 1}), ((X, IDS), {"unread": IDS + 2})]
    with modcache.keys(IDS):
        for args, kwargs in calls:
            target(*args, **kwargs)
        assert counted() == {**ONCE, "hits_memory": 6}
        with pytest.raises(ValueError, match="a second time"):
            target(Y, IDS)
    with modcache.keys(IDS + 10):
        target(X, IDS, scale=X)
        with pytest.raises(ValueError, match="a second time"):
            target(X, IDS, scale=Y)
