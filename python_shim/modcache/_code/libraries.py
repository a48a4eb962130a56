# SPDX-License-Identifier: Apache-2.0
"""What is known of methods of installed libraries that no look at their code could prove."""

from __future__ import annotations

from typing import Any, NamedTuple


class KnownMethod(NamedTuple):
    """A method of a library.

    ``ignored``: arguments that change how it runs, never what it returns. ``infers``: it puts its
    module into evaluation mode before it computes anything, and computes without gradients.
    """

    ignored: tuple[str, ...] = ()
    infers: bool = False


_BATCHED = KnownMethod(ignored=("batch_size", "show_progress_bar"), infers=True)
_UNKNOWN = KnownMethod()
_KNOWN: dict[str, dict[str, KnownMethod]] = {
    "sentence_transformers": {
        "encode": _BATCHED,
        "encode_query": _BATCHED,
        "encode_document": _BATCHED,
        "predict": _BATCHED,
    },
}


def known_method(function: Any) -> KnownMethod:
    """Returns what is known of a function that an installed library defines in a class."""
    library = str(getattr(function, "__module__", "")).partition(".")[0]
    methods = _KNOWN.get(library)
    if methods is None or "." not in getattr(function, "__qualname__", ""):
        return _UNKNOWN
    return methods.get(getattr(function, "__name__", ""), _UNKNOWN)
