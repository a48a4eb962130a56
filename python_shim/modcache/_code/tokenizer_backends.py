# SPDX-License-Identifier: Apache-2.0
"""How code mentions the tokenizer of Rust inside one of transformers."""

from __future__ import annotations

import types

from modcache._code.names import top_package
from modcache._code.scan import mentions

BACKEND_NAMES = frozenset({"_tokenizer", "backend_tokenizer"})
# These packages set what they read of it, or read parts of it that always count.
_KNOWN = frozenset({"sentence_transformers", "tokenizers", "transformers"})


def mentions_backend(function: types.FunctionType) -> bool:
    """Whether a function of a package may read settings of it that count nowhere else."""
    package = top_package(function.__globals__.get("__name__"))
    return package not in _KNOWN and mentions(function.__code__, BACKEND_NAMES)
