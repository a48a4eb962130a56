# SPDX-License-Identifier: Apache-2.0
"""What the reader of docs/recipes/pytorch-metric-learning.md has."""

from __future__ import annotations

import given_timm_torchvision
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN


def given(large: bool = False, epochs: int = 8) -> dict[str, object]:
    """Returns a trunk with random weights, transforms, and two folders of photos in place."""
    names = given_timm_torchvision.given(large)
    return {
        "trunk": names["backbone"],
        "width": names["width"],
        "augment": names["augment"],
        "prepare": names["prepare"],
        "calculator": AccuracyCalculator(  # the library's own search needs faiss
            include=("precision_at_1", "mean_average_precision_at_r"),
            k="max_bin_count",
            knn_func=CustomKNN(LpDistance()),
        ),
        "batch_size": 6,
        "workers": 0,
        "epochs": epochs,
    }
