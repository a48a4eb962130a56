# SPDX-License-Identifier: Apache-2.0
"""The generators that a dataset's code draws from: the global ones of torch, NumPy and Python.

A sample that is computed sees them in a state made from its name alone; afterwards they are what
they were, so that whoever draws next draws the same whether samples were cached or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from modcache._batches_ahead import caller_paused


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Whatever is drawn or seeded within it leaves no trace.

    In the thread of a Prefetcher it waits until the caller's thread draws nothing.
    """
    with caller_paused(), _states_kept():
        yield


@contextlib.contextmanager
def _states_kept() -> Iterator[None]:
    generators = _torch_generators()
    states = [generator.get_state() for generator in generators]
    python = random.getstate()
    numpy = _numpy_random()
    numpys = numpy.get_state(legacy=False) if numpy is not None else None
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(numpys)


def seed_generators(name: str) -> None:
    """Puts the generators into the state that belongs to ``name``, the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    number = int.from_bytes(digest[:8], "little") >> 1  # torch's seeds are signed
    for generator in _torch_generators():
        generator.manual_seed(number)
    random.seed(digest)
    numpy = _numpy_random()
    if numpy is not None:
        numpy.seed([int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)])


def _torch_generators() -> list[torch.Generator]:
    """Those of accelerators too, where a program uses them: seeding alone would wake them."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators += torch.cuda.default_generators
    return generators


def _numpy_random() -> Any:
    if "numpy" not in sys.modules:  # torch imports it where it is installed
        return None
    import numpy.random

    return numpy.random
