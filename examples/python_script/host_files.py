# SPDX-License-Identifier: Apache-2.0
"""What the C++ host loads: the trained model, and the texts with the answers Python got."""

from pathlib import Path

import torch
from texts import PACKAGES
from torch import Tensor, nn
from training import Samples


class HostInputs(nn.Module):
    """Attributes without code: TorchScript's file format is one that C++ reads as it is."""

    # No `from __future__ import annotations` in this file: TorchScript wants the types themselves.
    ids: Tensor
    mask: Tensor
    labels: Tensor
    logits: Tensor
    keys: list[str]
    packages: list[str]

    def __init__(self, samples: Samples, logits: Tensor) -> None:
        super().__init__()
        self.ids = samples.ids
        self.mask = samples.mask
        self.labels = samples.labels
        self.logits = logits
        self.keys = samples.keys
        self.packages = list(PACKAGES)

    def forward(self) -> int:
        return len(self.keys)


def save_for_host(model: torch.jit.ScriptModule, samples: Samples, directory: Path) -> None:
    """Writes classifier.pt and inputs.pt; the answers to compare with come from `model`."""
    with torch.no_grad():
        logits = torch.cat([model(one.ids, one.mask, one.keys) for one in samples.batches()])
    model.save(str(directory / "classifier.pt"))
    torch.jit.script(HostInputs(samples, logits)).save(str(directory / "inputs.pt"))
