# SPDX-License-Identifier: Apache-2.0
"""The random generators that all threads of a process share."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
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


@contextlib.contextmanager
def global_states_kept() -> Iterator[None]:
    """Whatever is drawn or seeded within it leaves no trace, on accelerators neither."""
    generators = torch_generators()
    states = [generator.get_state() for generator in generators]
    python = random.getstate()
    numpy = numpy_random()
    numpys = numpy.get_state(legacy=False) if numpy is not None else None
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(numpys)


def torch_generators() -> list[torch.Generator]:
    """Those of accelerators too, where a program uses them: seeding alone would wake them."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators += torch.cuda.default_generators
    return generators


def numpy_random() -> Any:
    """The module; None in a process that does not use it."""
    if "numpy" not in sys.modules:  # torch imports it where it is installed
        return None
    import numpy.random

    return numpy.random
