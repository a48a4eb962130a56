# SPDX-License-Identifier: Apache-2.0
"""Features stored in half precision: nearly half the bytes, in memory and on disk.

With ``configure(dtype="float16")`` floating-point values are stored with 16 bits and come back in
the module's own dtype, so that no code changes. What is lost is what rounding to half precision
loses; the recipe prints it. A number beyond half precision's range would not become infinite: such
a tensor is stored in full.
"""

from __future__ import annotations

import modcache
import torch
from encoders import load_text_encoder, tokens_of
from glyphs import letters
from options import folder_of


def main() -> None:
    folder = folder_of(__doc__)
    encoder = load_text_encoder()
    chosen = letters()[::8]
    tokens = tokens_of([letter.name for letter in chosen])
    keys = [letter.name for letter in chosen]

    features, size_bytes = {}, {}
    for dtype in ("keep", "float16"):
        modcache.configure(dir=folder / dtype, dtype=dtype)
        modcache.lookup_or_run(encoder, tokens, keys)  # runs where it is not stored yet
        features[dtype] = modcache.lookup_or_run(encoder, tokens, keys)
        modcache.flush()
        size_bytes[dtype] = modcache.stats()["bytes_memory"]
        modcache.clear(tier="memory")
    difference = (features["keep"] - features["float16"]).abs().max()
    print(f"dtype of the features: {features['float16'].dtype}")
    print(f"bytes in memory: {size_bytes['keep']} in full, {size_bytes['float16']} in half")
    print(f"largest difference: {difference:.2e}, of features up to {features['keep'].max():.2f}")
    assert torch.allclose(features["keep"], features["float16"], atol=1e-3)


if __name__ == "__main__":
    main()
