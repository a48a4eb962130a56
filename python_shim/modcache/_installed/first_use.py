# SPDX-License-Identifier: Apache-2.0
"""Packages that load parts of themselves when they are first used.

Pillow imports the code for a file format when it meets the first file of that format, and that code
registers itself. A dataset that was looked at before it read a file would be another one later.
So these parts are loaded before the code of the package is followed, and the order in which they
were registered does not count.
"""

from __future__ import annotations

import contextlib
import importlib

from modcache._code.reads import Read

_LOADERS = {"pillow": ("PIL.Image", "init"), "pillow-simd": ("PIL.Image", "init")}
_REGISTRIES = {
    "PIL.Image": frozenset(
        {"DECODERS", "ENCODERS", "EXTENSION", "ID", "MIME", "OPEN", "SAVE", "SAVE_ALL"}
    )
}


def load_all_parts(distribution: str) -> None:
    """Has a distribution of this name load what its first use would."""
    module, function = _LOADERS.get(distribution.lower(), ("", ""))
    if module:
        with contextlib.suppress(Exception):  # it is followed as far as it can be used
            getattr(importlib.import_module(module), function)()


def in_order(read: Read, module: str) -> Read:
    """Returns the read of a global of ``module``; if it is a registry, of its items by name."""
    if read.name not in _REGISTRIES.get(module, ()):
        return read
    return Read(
        read.name, lambda: _by_name(read.value()), read.kind, read.owner, read.path,
        guarded=read.value,
    )  # fmt: skip


def _by_name(registry: object) -> object:
    if isinstance(registry, dict):
        return dict(sorted(registry.items(), key=str))
    return sorted(registry, key=str) if isinstance(registry, list) else registry
