# SPDX-License-Identifier: Apache-2.0
"""A dataset for tests of what samples may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset


class Made(Dataset[Any]):
    """Gives what a function makes; a scope of its own is given to it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.runs = 0

    def __getitem__(self, index: int) -> Any:
        self.runs += 1
        return self.make()
