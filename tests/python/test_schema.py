# SPDX-License-Identifier: Apache-2.0
"""The operators' schemas. Saved models carry them: they may grow defaults, and nothing else."""

from __future__ import annotations

import modcache  # noqa: F401  (registers them)
import pytest
import torch

SCHEMAS = {
    **{
        f"lookup_or_run{any_}{overload}": f"cache::lookup_or_run{any_}{overload}(Any module, "
        f'Any input, {keys}, *, str scope="", str method="forward") -> {result}'
        for any_, result in (("", "Tensor"), ("_any", "Any"))
        for overload, keys in (("", "str key"), (".keys", "str[] keys"), (".ids", "Tensor ids"))
    },
    **{
        f"lookup_or_run_file{overload}": f"cache::lookup_or_run_file{overload}(str path, "
        f'Any input, {keys}, *, str scope="", str method="forward") -> Tensor'
        for overload, keys in (("", "str key"), (".keys", "str[] keys"), (".ids", "Tensor ids"))
    },
    **{
        f"lookup_or_run_file{overload}_mask": f"cache::lookup_or_run_file{overload}_mask("
        f"str path, Any input, {keys}, *, Tensor mask, float pad_value=0., "
        'str scope="", str method="forward") -> Tensor'
        for overload, keys in ((".keys", "str[] keys"), (".ids", "Tensor ids"))
    },
    **{
        f"lookup_or_run{any_}{overload}_mask": f"cache::lookup_or_run{any_}{overload}_mask("
        f"Any module, Any input, {keys}, *, Tensor mask, float pad_value=0., "
        f'str scope="", str method="forward") -> {result}'
        for any_, result in (("", "Tensor"), ("_any", "Any"))
        for overload, keys in ((".keys", "str[] keys"), (".ids", "Tensor ids"))
    },
    "lookup": "cache::lookup(str scope, str key) -> (bool, Tensor)",
    "store": "cache::store(str scope, str key, Tensor value) -> Tensor",
    "contains": "cache::contains(str scope, str key) -> bool",
    "fingerprint": 'cache::fingerprint(Any module, *, str method="forward") -> str',
    "refresh_fingerprint": "cache::refresh_fingerprint(Any module) -> str",
    "content_key": "cache::content_key(Any input) -> str",
    "content_keys": "cache::content_keys(Any input) -> str[]",
    "prefetch": 'cache::prefetch(str scope, str[] keys, *, str method="forward") -> int',
    "prefetch.ids": 'cache::prefetch.ids(str scope, Tensor ids, *, str method="forward") -> int',
    "place": "cache::place(str scope, str place) -> str",
    "configure": "cache::configure(Dict(str, str) options) -> ()",
    "settings": "cache::settings() -> Dict(str, str)",
    "set_mode": "cache::set_mode(str mode) -> ()",
    "mode": "cache::mode() -> str",
    "stats": "cache::stats() -> Dict(str, int)",
    "reset_stats": "cache::reset_stats() -> ()",
    "metrics": "cache::metrics() -> str",
    "bytes_by_scope": "cache::bytes_by_scope() -> Dict(str, int)",
    "flush": "cache::flush() -> ()",
    "clear": 'cache::clear(str scope="", *, str prefix="", str tier="all") -> int',
    "clear.older_than": 'cache::clear.older_than(str scope="", *, str prefix="", str tier="all", '
    "float older_than_s) -> int",
    "lower": "cache::lower(Any module) -> ()",
}

# What saved graphs consist of: lowered and frozen models, and exported programs. The last five are
# what include/modcache/ calls in hosts that were built before.
CLASS = "__torch__.torch.classes.cache"
SITE = (
    "(str scope, (str, int, int) identity, str method, str class_name, "
    f"{CLASS}.Held arguments, bool is_any)"
)
CALL = f"({CLASS}.LoweredCall call"
SAVED = {
    "_held": f"(Any value) -> {CLASS}.Held",
    "_identity": "(str recipe, Any attributes, str scope) -> ((str, int, int))",
    "_identity_of_run": "(str recipe, Any attributes, str scope, Any call) -> ((str, int, int))",
    "_state": "(Any attributes, Any call, int moment) -> int",
    "_lowered_call": f"{SITE} -> {CLASS}.LoweredCall",
    "_must_run": f"{CALL}) -> bool",
    "_begin_run": f"{CALL}, (str, int, int) identity, {CLASS}.Held kept) -> Any",
    "_finish_run": f"{CALL}, {CLASS}.Held result, int before, int after) -> bool",
    "_is_last_run": f"{CALL}) -> bool",
    "_value_of": f"{CALL}) -> Any",
    "_probe": ("(Tensor? ids, Tensor[] tensors, int inputs, SymInt[] sizes, str site) -> Tensor"),
    "_fetch": "(Tensor ticket, Tensor beside, SymInt[] sizes, str dtypes) -> Tensor[]",
    "_put": "(Tensor ticket, Tensor[] values) -> Tensor[]",
    "_make_cache": f"(Dict(str, str) options) -> {CLASS}.Cache",
    "_enter_cache": f"({CLASS}.Cache? cache) -> {CLASS}.Cache?",
    "_enter_mode": "(str mode) -> int",
    "_leave_mode": "(int previous) -> ()",
    "_freeze": "(Any module, str[] methods, bool optimize_numerics) -> Any",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    operator, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.cache, operator), overload or "default")
    assert str(found._schema) == SCHEMAS[name]


@pytest.mark.parametrize("name", SAVED)
def test_schema_that_others_have_kept(name: str) -> None:
    assert str(getattr(torch.ops.cache, name).default._schema) == f"cache::{name}{SAVED[name]}"


# What the Python package calls, which changes with it. More of that belongs into classes: an
# operator that is given an object costs five times what a method does.
PACKAGE = {
    *("_content_keys", "_follow_modes", "_disable_memory_tier", "_load_model", "_mode_levels"),
    *("_flush_all", "_store_all"),
    *("_made_rows", "_one_row_of_length", "_select_rows", "_stepped", "_take_log"),
}


def test_there_are_no_other_operators() -> None:
    names = {
        schema.name.removeprefix("cache::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("cache::")
    }
    public = {name for name in names if not name.startswith("_")}
    assert public == {name.partition(".")[0] for name in SCHEMAS}
    assert names - public == {*SAVED, *PACKAGE}
