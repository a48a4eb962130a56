# SPDX-License-Identifier: Apache-2.0
"""The one-line form on an eager pre-trained module: a warm epoch against one without the cache.

What is compared is the encoder's part alone: a MiniLM over batches of real sentences, in the form
`modcache.cached(encoder, key="text_ids", freeze=True)`. Each warm epoch is read in another order.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import modcache
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python_script"))

import encoder as sentences
import texts

BOUND = 300.0
WARM_EPOCHS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--memory", default="1GB", help="0: every hit comes from disk")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()

    chosen = texts.load_texts(options.texts)
    tokens = sentences.tokenize([text.text for text in chosen])
    plain, _ = sentences.load_encoder()
    uncached_s, wanted = _epoch(lambda *inputs, text_ids: plain(*inputs), tokens, options.batch)
    with tempfile.TemporaryDirectory() as folder:
        modcache.configure(dir=folder, memory=options.memory)
        encoder = modcache.cached(plain, key="text_ids", freeze=True)
        cold_s, _ = _epoch(encoder, tokens, options.batch)
        modcache.reset_stats()
        epochs = [_epoch(encoder, tokens, options.batch) for _ in range(WARM_EPOCHS)]
        counts = modcache.stats()
    figures = {
        "texts": len(chosen),
        "uncached_s": uncached_s,
        "cold_s": cold_s,
        "warm_s": min(spent for spent, _ in epochs),
        "hits": counts["hits_memory"] + counts["hits_disk"],
        "misses": counts["misses"],
        "values_equal": all(torch.allclose(got, wanted, atol=1e-5) for _, got in epochs),
    }
    figures["times_faster"] = figures["uncached_s"] / figures["warm_s"]
    for name, figure in figures.items():
        print(f"{name:13} {figure:.4g}" if isinstance(figure, float) else f"{name:13} {figure}")
    if options.json:
        options.json.write_text(json.dumps(figures))
    return 0 if figures["values_equal"] and figures["times_faster"] >= BOUND else 1


def _epoch(
    encoder: Callable[..., torch.Tensor], tokens: tuple[torch.Tensor, ...], batch: int
) -> tuple[float, torch.Tensor]:
    """The seconds that the encoder took, and the features of all texts in their order."""
    rows = torch.randperm(len(tokens[0]))
    features, spent = [], 0.0
    with torch.no_grad():
        for rows_of_batch in rows.split(batch):
            inputs = [part[rows_of_batch] for part in tokens]
            started = time.perf_counter()
            features.append(encoder(*inputs, text_ids=rows_of_batch))
            spent += time.perf_counter() - started
    return spent, torch.cat(features)[rows.argsort()]


if __name__ == "__main__":
    sys.exit(main())
