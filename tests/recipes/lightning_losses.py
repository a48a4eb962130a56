# SPDX-License-Identifier: Apache-2.0
"""The losses that Lightning logs, and a training by DDP, whose processes Lightning starts.

    python lightning_losses.py NAME EPOCHS

runs the recipe with two processes, and each writes its losses and counters into NAME.RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torchvision_operators

torchvision_operators.declare_missing()

import modcache  # noqa: E402
import recipe  # noqa: E402
import torch  # noqa: E402
from given_lightning import given  # noqa: E402
from lightning.pytorch.loggers import Logger  # noqa: E402


class Losses(Logger):  # type: ignore[misc]
    """Keeps the losses in the order in which they are logged, and writes no file."""

    name = "losses"
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.values += [value for name, value in metrics.items() if name.endswith("_loss")]

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


def main(name: str, epochs: int) -> None:
    torch.set_num_threads(1)
    losses = Losses()
    options = {"strategy": "ddp", "devices": 2, "logger": losses, "enable_checkpointing": False}
    chosen = given(epochs=epochs, **options)
    torch.manual_seed(3)
    names = recipe.run("lightning", **chosen)
    modcache.flush()
    model: Any = names["model"]
    found = {
        "losses": losses.values,
        "weights": model.head.weight.tolist(),
        "counts": dict(modcache.stats()),
    }
    Path(f"{name}.{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
