# SPDX-License-Identifier: Apache-2.0
"""A lazy model: what is in the cache is not only not run again, but not even loaded.

``modcache.lazy`` takes a function that loads the model, and a name for it. As long as everything
hits, the function is not called: training starts at once, and the encoder's memory, on host and
accelerator, stays free. Start this recipe twice: the first start loads the sentence encoder and
fills the cache, the second reports that it was not loaded.
"""

from __future__ import annotations

import time

import modcache
import torch
from encoders import load_text_encoder, tokens_of
from glyphs import letters
from options import folder_of


def main() -> None:
    modcache.configure(dir=folder_of(__doc__))
    chosen = letters()[::8]
    tokens = tokens_of([letter.name for letter in chosen])
    started = time.perf_counter()
    encoder = modcache.lazy(load_text_encoder, scope="all-minilm-l6-v2@1")
    with torch.no_grad():
        features = modcache.lookup_or_run(encoder, tokens, [letter.name for letter in chosen])
    spent = time.perf_counter() - started
    was_loaded = "was loaded" if encoder.loaded else "was not loaded"
    print(f"{len(features)} texts in {spent:.3f} s; the encoder {was_loaded}")


if __name__ == "__main__":
    main()
