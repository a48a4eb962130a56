# SPDX-License-Identifier: Apache-2.0
"""The generators that a dataset's code draws from: the global ones of torch, NumPy and Python.

While a sample is made, their states are made from its name alone. Afterwards they are restored, so
that the next draw gives the same whether samples were cached or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

from modcache._feed.batches_ahead import caller_paused
from modcache._library.global_random import global_states_kept, numpy_random, torch_generators


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restores the states at the end, whatever was drawn or seeded inside.

    In the thread of a Prefetcher, it waits until the caller's thread draws nothing.
    """
    with caller_paused(), global_states_kept():
        yield


def seed_generators(name: str) -> None:
    """Puts the generators into the state that belongs to ``name``, the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    number = int.from_bytes(digest[:8], "little") >> 1  # torch's seeds are signed
    for generator in torch_generators():
        generator.manual_seed(number)
    random.seed(digest)
    numpy = numpy_random()
    if numpy is not None:
        numpy.seed([int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)])
