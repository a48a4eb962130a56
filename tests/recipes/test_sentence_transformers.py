# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/sentence-transformers.md with the real library."""

from __future__ import annotations

from typing import Any

import modcache
import numpy as np
import recipe
import torch
from given_sentence_transformers import given

NAME = "sentence-transformers"
SENTENCES: list[str] = given()["sentences"]  # type: ignore[assignment]


def program(texts: list[str], batch_size: int = 32) -> tuple[Any, dict[str, int]]:
    """Runs the recipe on other texts, and encodes them again in batches of another size.

    Returns the embeddings, which are the same, and how many rows ran and hit in all.
    """
    torch.set_num_threads(1)
    modcache.reset_stats()
    names: dict[str, Any] = recipe.run(NAME, **{**given(), "sentences": texts})
    again = names["model"].encode(texts, batch_size=batch_size)
    assert np.array_equal(again, names["embeddings"])
    counts = modcache.stats()
    hits = counts["hits_memory"] + counts["hits_disk"]
    return again, {"runs": counts["misses"], "stored": counts["stored"], "hits": hits}


def test_embeddings_are_those_of_the_library() -> None:
    with modcache.mode("off"):
        wanted, _ = program(SENTENCES)
    found, counts = program(SENTENCES)
    assert counts == {"runs": 8, "stored": 8, "hits": 8}
    assert np.array_equal(found, wanted)


def test_another_process_with_other_batches_runs_nothing() -> None:
    first, _ = program(SENTENCES)
    modcache.flush()
    found, counts = recipe.in_another_process(program, SENTENCES[::-1], 3)
    assert counts == {"runs": 0, "stored": 0, "hits": 16}
    assert np.array_equal(found[::-1], first)


def test_an_edited_sentence_is_encoded_alone() -> None:
    first, _ = program(SENTENCES)
    edited = [*SENTENCES[:3], SENTENCES[3] + " It is not.", *SENTENCES[4:]]
    found, counts = program(edited)
    assert counts == {"runs": 1, "stored": 1, "hits": 15}
    assert np.array_equal(np.delete(found, 3, axis=0), np.delete(first, 3, axis=0))
    with modcache.mode("off"):
        wanted, _ = program(edited)
    assert np.allclose(found, wanted, atol=1e-5)
