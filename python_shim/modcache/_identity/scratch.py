# SPDX-License-Identifier: Apache-2.0
"""Attributes that are no part of an identity, such as what every run writes before it reads it."""

from __future__ import annotations

import types
import weakref

from modcache._code.names import is_packaged, top_package

_SCRATCH = {
    # accelerate's hook notes the device of a call's input, and moves the output there.
    ("accelerate.hooks", "AlignDevicesHook"): frozenset({"input_device"}),
    # A run that loads a lazy module is no other than one that found it loaded. Its scope stands for
    # what the factory makes.
    ("modcache._lazy.source", "LazySource"): frozenset(
        {
            *("module", "_factory", "_digest", "_as_loaded", "_changes_at_load"),
            *("_is_handed_out", "_noted_methods", "_fingerprints"),
        }
    ),
}
_NOTHING: frozenset[str] = frozenset()
# A tokenizer of transformers keeps the one of Rust here, which is read apart (tokenizers.py).
BACKEND = "_tokenizer"
_OF_TOKENIZERS = frozenset({BACKEND, "deprecation_warnings"})
_are_tokenizers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def scratch_of(kind: type) -> frozenset[str]:
    """Returns the names of such attributes of objects of exactly this class."""
    if is_tokenizer(kind):
        return _OF_TOKENIZERS
    return _SCRATCH.get((kind.__module__, kind.__qualname__), _NOTHING)


def is_tokenizer(kind: type) -> bool:
    """Whether it is a package's class of tokenizers that pass their calls on to one of Rust."""
    known = _are_tokenizers.get(kind)
    if known is None:
        known = _are_tokenizers[kind] = is_packaged(kind) and any(
            top_package(base.__module__) == "transformers"
            and isinstance(vars(base).get("set_truncation_and_padding"), types.FunctionType)
            for base in kind.__mro__
        )
    return known
