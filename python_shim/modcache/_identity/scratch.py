# SPDX-License-Identifier: Apache-2.0
"""Attributes that are no part of an identity: a run writes them before it reads them.

Or it reads only what it would compute again, or never reads them at all.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from modcache._code.libraries import known_method
from modcache._code.names import is_packaged, top_package
from modcache._code.wrapped import class_behind

# accelerate's hook notes the device of a call's input, and moves the output there. The tables of
# transformers note the modules that were imported for them.
_IMPORTED = frozenset({"_modules"})
_SCRATCH = {
    ("accelerate.hooks", "AlignDevicesHook"): frozenset({"input_device"}),
    ("transformers.models.auto.auto_factory", "_LazyAutoMapping"): _IMPORTED,
    ("transformers.models.auto.configuration_auto", "_LazyConfigMapping"): _IMPORTED,
    # A run that loads a lazy module is no other than one that found it loaded. Its scope stands for
    # what the factory makes.
    ("modcache._lazy.source", "LazySource"): frozenset(
        {
            *("module", "_factory", "_digest", "_as_loaded", "_changes_at_load"),
            *("_is_handed_out", "_noted_in", "_fingerprints"),
        }
    ),
}
# A package's modules note the lengths of the prompts that they have seen, in tokens.
_OF_MODULES = {"sentence_transformers": frozenset({"_prompt_length_mapping"})}
# A model's card is changed by an evaluation and by ``save``. No method of the package computes with
# it, but a function of the user's that has the model might.
_CARDS = {
    "sentence_transformers": frozenset({"model_card_data", "_model_card_text", "_model_card_vars"})
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


def scratch_of_module(kind: type, asked: str) -> frozenset[str]:
    """Returns the names of such attributes of modules of exactly this class.

    ``asked``: as ``package_asked`` returns it, for the module that is looked up.
    """
    package = top_package(kind.__module__)
    scratch = _OF_MODULES.get(package, _NOTHING)
    return scratch | _CARDS.get(package, _NOTHING) if package == asked else scratch


def package_asked(root: Any) -> str:
    """Returns the package whose own method is looked up, called by no code around it; "" if not."""
    held = getattr(root, "__dict__", {}).get("forward")  # a root may be any objects
    if isinstance(held, functools.partial) and len(held.args) == 2:  # a method of an object
        function = held.args[1]
        return top_package(function.__module__) if known_method(function).infers else ""
    package = top_package(class_behind(type(root)).__module__)
    return package if package in _CARDS else ""


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
