# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes/sentence-transformers.md takes from the reader."""

from __future__ import annotations

import docstrings
from sentence_transformers import SentenceTransformer


def given(large: bool = False) -> dict[str, object]:
    """A pre-trained MiniLM, and docstrings in place of sentences."""
    model = SentenceTransformer(docstrings.minilm(), device="cpu")
    return {"model": model, "sentences": docstrings.texts(600 if large else 8)}
