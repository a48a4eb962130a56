# SPDX-License-Identifier: Apache-2.0
"""The operators' schemas. Saved models carry them: they may grow defaults, and nothing else."""

from __future__ import annotations

import modcache  # noqa: F401  (registers them)
import pytest
import torch

SCHEMAS = {
    "lookup_or_run": "cache::lookup_or_run(Any module, Any input, str key, *, "
    'str scope="", str method="forward") -> Tensor',
    "lookup": "cache::lookup(str scope, str key) -> (bool, Tensor)",
    "store": "cache::store(str scope, str key, Tensor value) -> Tensor",
    "contains": "cache::contains(str scope, str key) -> bool",
    "fingerprint": 'cache::fingerprint(Any module, *, str method="forward") -> str',
    "refresh_fingerprint": "cache::refresh_fingerprint(Any module) -> str",
    "content_key": "cache::content_key(Any input) -> str",
    "content_keys": "cache::content_keys(Any input) -> str[]",
    "configure": "cache::configure(Dict(str, str) options) -> ()",
    "settings": "cache::settings() -> Dict(str, str)",
    "set_mode": "cache::set_mode(str mode) -> ()",
    "mode": "cache::mode() -> str",
    "stats": "cache::stats() -> Dict(str, int)",
    "reset_stats": "cache::reset_stats() -> ()",
    "flush": "cache::flush() -> ()",
    "clear": 'cache::clear(str scope="", *, str prefix="", str tier="all") -> int',
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    packet = getattr(torch.ops.cache, name)
    schemas = [str(getattr(packet, overload)._schema) for overload in packet.overloads()]
    plain = [schema.replace("cache::" + name + ".", "cache::" + name) for schema in schemas]
    assert SCHEMAS[name] in plain


def test_nothing_else_is_public() -> None:
    names = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("cache::")
    }
    public = {name for name in names if not name.startswith("cache::_")}
    assert public == {f"cache::{name}" for name in SCHEMAS}
