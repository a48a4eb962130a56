# SPDX-License-Identifier: Apache-2.0
"""A fill pass that resumes: features of a whole dataset, computed before training begins.

``modcache.fill`` runs the encoder over everything that a loader yields, with a progress bar. It may
be stopped at any time, by Ctrl-C or by a machine that goes away, and when it is started again it
runs only what is missing. Here a loader stops the first pass half-way, as Ctrl-C would. On several
machines or ranks, each fills its share.
"""

from __future__ import annotations

from collections.abc import Iterator

import modcache
from encoders import load_text_encoder, tokens_of
from glyphs import letters
from options import folder_of
from torch import Tensor

Batch = tuple[Tensor, Tensor, list[str]]
BATCH_SIZE = 32


def batches(stop_after: int | None = None) -> Iterator[Batch]:
    """(token ids, mask, keys); after `stop_after` batches, what Ctrl-C does."""
    chosen = letters()[::4]
    ids, mask = tokens_of([letter.name for letter in chosen])
    for number, first in enumerate(range(0, len(chosen), BATCH_SIZE)):
        if number == stop_after:
            raise KeyboardInterrupt
        rows = slice(first, first + BATCH_SIZE)
        yield ids[rows], mask[rows], [letter.name for letter in chosen[rows]]


def key_of(batch: Batch) -> list[str]:
    return batch[2]


def input_of(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch[0], batch[1]


def main() -> None:
    modcache.configure(dir=folder_of(__doc__))
    encoder = load_text_encoder()
    try:
        modcache.fill(encoder, batches(stop_after=4), key=key_of, input=input_of)
    except KeyboardInterrupt:
        print("interrupted")
    print(modcache.fill(encoder, batches(), key=key_of, input=input_of))
    print(modcache.fill(encoder, batches(), key=key_of, input=input_of))


if __name__ == "__main__":
    main()
