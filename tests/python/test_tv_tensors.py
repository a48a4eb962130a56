# SPDX-License-Identifier: Apache-2.0
"""torchvision's tv_tensors as arguments, results and samples."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from models import Python

KEYS = ["a", "b", "c"]


class TVTensor(torch.Tensor):
    pass


class Image(TVTensor):
    pass


class BoundingBoxFormat(enum.Enum):
    XYXY = "XYXY"
    XYWH = "XYWH"


class BoundingBoxes(TVTensor):
    format: BoundingBoxFormat
    canvas_size: tuple[int, int]


@pytest.fixture
def tv_tensors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchvision's module, or one of the same shape where there is none."""
    try:
        from torchvision import tv_tensors
    except (ImportError, RuntimeError):
        made: Any = types.ModuleType("torchvision.tv_tensors")
        for kind in (TVTensor, Image, BoundingBoxFormat, BoundingBoxes):
            setattr(made, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
        monkeypatch.setitem(sys.modules, "torchvision.tv_tensors", made)
        return made
    return tv_tensors


def image_tensor(tv_tensors: Any, data: torch.Tensor) -> Any:
    return data.as_subclass(tv_tensors.Image)


def boxes(tv_tensors: Any, data: torch.Tensor, form: str = "XYXY") -> Any:
    made = data.as_subclass(tv_tensors.BoundingBoxes)
    made.format = tv_tensors.BoundingBoxFormat[form]
    made.canvas_size = (7, 9)
    return made


def test_tv_tensors_come_back_in_samples(tv_tensors: Any, reopen: Callable[[], None]) -> None:
    data = torch.arange(8.0).reshape(2, 4)
    sample = {"image": image_tensor(tv_tensors, data), "boxes": boxes(tv_tensors, data, "XYWH")}
    dataset: Any = modcache.CachedDataset([sample], scope="s")
    for round_ in range(3):
        if round_ == 2:
            reopen()
        found = dataset[0]
        assert type(found["image"]) is tv_tensors.Image
        assert type(found["boxes"]) is tv_tensors.BoundingBoxes
        assert found["boxes"].format is tv_tensors.BoundingBoxFormat.XYWH
        assert found["boxes"].canvas_size == (7, 9)
        for name in ("image", "boxes"):
            assert torch.equal(found[name].as_subclass(torch.Tensor), data)
            found[name].as_subclass(torch.Tensor).zero_()
    assert data[0, 1] == 1


def test_tv_tensors_as_arguments_and_results(tv_tensors: Any, counted: Any) -> None:
    data = torch.arange(12.0).reshape(3, 4)

    def shifted(value: Any) -> Any:
        made = (value.as_subclass(torch.Tensor) + 1).as_subclass(type(value))
        vars(made).update(vars(value))
        return made

    module = Python(shifted)
    few = boxes(tv_tensors, data[1:2])
    modcache.lookup_or_run(module, few, ["b"], scope="s")
    for _ in range(2):
        found = modcache.lookup_or_run(module, boxes(tv_tensors, data), KEYS, scope="s")
        assert type(found) is tv_tensors.BoundingBoxes
        assert found.format is tv_tensors.BoundingBoxFormat.XYXY
        assert torch.equal(found.as_subclass(torch.Tensor), data + 1)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 4}
    modcache.lookup_or_run(module, boxes(tv_tensors, data, "XYWH"), KEYS, scope="s")
    modcache.lookup_or_run(module, image_tensor(tv_tensors, data), KEYS, scope="s")
    assert counted() == {"misses": 6, "stored": 6}
    modcache.lookup_or_run(module, boxes(tv_tensors, data + 1), KEYS, scope="s")
    assert counted()["key_conflicts"] == 3
    assert modcache.content_key(boxes(tv_tensors, data)) != modcache.content_key(
        boxes(tv_tensors, data, "XYWH")
    )


def test_a_tv_tensor_with_something_of_its_own_is_not_cached(tv_tensors: Any, counted: Any) -> None:
    value = image_tensor(tv_tensors, torch.ones(3, 4))
    value.more = object()
    module = Python(lambda x: x.as_subclass(torch.Tensor) * 2)
    modcache.lookup_or_run(module, value, "k", scope="s")
    assert counted() == {"bypassed_type": 1}
