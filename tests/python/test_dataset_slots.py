# SPDX-License-Identifier: Apache-2.0
"""Objects of a dataset that have slots beside their attributes."""

from __future__ import annotations

import modcache
import torch


class Step:
    __slots__ = ("scale",)


class Scale(Step):  # without __slots__ of its own, so that it has a __dict__ as well
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.name = "scale"


class Scaled(torch.utils.data.Dataset[float]):
    def __init__(self, step: Scale) -> None:
        self.step = step

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        return (index + 1) * self.step.scale


def test_slots_beside_a_dict_count() -> None:
    for factor in (2.0, 5.0):
        cached = modcache.CachedDataset(Scaled(Scale(factor)))
        assert cached[0] == factor
        cached.dataset.step.scale = factor + 1
        assert cached[0] == factor + 1
