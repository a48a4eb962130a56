# SPDX-License-Identifier: Apache-2.0
"""Tells the library which tensors an optimizer has stepped.

Fused optimizers write without counting versions, perhaps to a few rows only. Without this
notification, a module whose gradients were reset afterwards would look unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def _after_step(optimizer: torch.optim.Optimizer, _arguments: Any, _options: Any) -> None:
    stepped = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    torch.ops.cache._stepped(stepped)


def watch_optimizers() -> None:
    """Registers the notification for ``torch.optim`` and all optimizers derived from it."""
    register_optimizer_step_post_hook(_after_step)
