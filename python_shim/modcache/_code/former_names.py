# SPDX-License-Identifier: Apache-2.0
"""The names that modules had in version 0.2.0, which fingerprints and pickles hold.

A fingerprint holds the full name of each class and function of this package that the user's code
mentions or an attribute is made of, so it has to stay. A pickle names the module in which its class
was found; ``modcache/__init__.py`` makes these names known to ``import``.
"""

from __future__ import annotations

from modcache._code.objects import attribute_of, is_a

FORMER_MODULES = {
    "modcache._cached.call_key": "modcache._call_key",
    "modcache._cached.decorator": "modcache._cached",
    "modcache._cached.function": "modcache._cached_function",
    "modcache._cached.module": "modcache._cached_module",
    "modcache._call.arguments": "modcache._arguments",
    "modcache._call.content": "modcache._content",
    "modcache._call.holder": "modcache._holder",
    "modcache._data.dataset": "modcache._dataset",
    "modcache._data.lookup": "modcache._dataset_lookup",
    "modcache._data.scope": "modcache._dataset_scope",
    "modcache._data.stream": "modcache._dataset_stream",
    "modcache._data.values": "modcache._dataset_values",
    "modcache._data.variants": "modcache._dataset_variants",
    "modcache._explain.explanation": "modcache._explanation",
    "modcache._explain.report": "modcache._explain",
    "modcache._export.freeze": "modcache._freeze",
    "modcache._feed.prefetcher": "modcache._prefetcher",
    "modcache._fill.fill_pass": "modcache._fill",
    "modcache._fill.summary": "modcache._fill_summary",
    "modcache._lazy.model": "modcache._lazy",
    "modcache._lazy.source": "modcache._lazy_source",
    "modcache._library.loading": "modcache._library",
    "modcache._library.mode": "modcache._mode",
    "modcache._library.settings": "modcache._settings",
    "modcache._library.stats": "modcache._stats",
    "modcache._library.text": "modcache._text",
    "modcache._lookup.lookup": "modcache._lookup",
    "modcache._lookup.place": "modcache._place",
    "modcache._lookup.prefetch": "modcache._prefetch",
}


def lasting_module_of(value: object) -> str:
    """Names the module of a class or function, as fingerprints have it."""
    module = attribute_of(value, "__module__") or ""
    return FORMER_MODULES.get(module, module) if is_a(module, str) else str(module)
