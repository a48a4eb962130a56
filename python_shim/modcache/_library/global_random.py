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
    """The states of the generators of torch (CPU), Python and NumPy at one moment."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def was_drawn_from(self) -> bool:
        """Whether any of them was drawn from or seeded since."""
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
    """Restores the states at the end, also those of accelerators."""
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
    """Returns torch's generators. Accelerators that are not in use are left uninitialised."""
    generators = [torch.default_generator]
    kind = torch.accelerator.current_accelerator()
    # A backend of one's own may have no module, and then says nothing of its generators.
    module: Any = None if kind is None else getattr(torch, kind.type, None)
    if getattr(module, "is_initialized", bool)():  # bool() is False
        generators += getattr(module, "default_generators", ())
    return generators


def numpy_random() -> Any:
    """Returns numpy.random; None in a process that does not use NumPy."""
    if "numpy" not in sys.modules:  # torch imports NumPy if it is installed
        return None
    import numpy.random

    return numpy.random
