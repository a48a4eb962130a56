# SPDX-License-Identifier: Apache-2.0
"""The random generators that all threads of a process share."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class GlobalRandom:
    """What the generators of torch (CPU), Python and NumPy were at one moment."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def was_drawn_from(self) -> bool:
        """Whether any of them has moved since."""
        return (
            not torch.equal(self._torch, torch.get_rng_state())
            or self._python != random.getstate()
            or self._numpy != _numpy_state()
        )


def _numpy_state() -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return None
    name, words, *rest = numpy.random.get_state()
    return name, words.tobytes(), *rest
