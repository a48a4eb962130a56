# SPDX-License-Identifier: Apache-2.0
"""What earlier versions wrote names modules of this package: it is read, and written, as before."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import modcache
import pytest
import torch
from modcache._call.tagged import _name_of
from modcache._code.former_names import FORMER_MODULES
from modcache._code.names import plain_name, trusted_name
from modcache._data.values import Array, Bytes

# As version 0.2.0 had them.
NAMES = [
    "modcache._cached.cached",
    "modcache._cached_module.new_face",
    "modcache._content.content_key",
    "modcache._content.content_keys",
    "modcache._dataset.CachedDataset",
    "modcache._dataset_lookup.SampleCache",
    "modcache._dataset_scope.SampleMaker",
    "modcache._dataset_stream.CachedIterableDataset",
    "modcache._dataset_values.Array",
    "modcache._dataset_values.Bytes",
    "modcache._dataset_variants.Variants",
    "modcache._explain.explain",
    "modcache._explanation.Explanation",
    "modcache._fill.fill",
    "modcache._fill_summary.FillSummary",
    "modcache._freeze.freeze",
    "modcache._holder.Holder",
    "modcache._lazy.Lazy",
    "modcache._lazy.lazy",
    "modcache._lazy_source.LazySource",
    "modcache._library.cmake_prefix_path",
    "modcache._lookup.fingerprint",
    "modcache._lookup.lookup_or_run",
    "modcache._lookup.lookup_or_run_any",
    "modcache._lookup.refresh_fingerprint",
    "modcache._mode.ModeGuard",
    "modcache._mode.mode",
    "modcache._mode.set_mode",
    "modcache._place.place",
    "modcache._prefetch.prefetch",
    "modcache._prefetcher.Prefetcher",
    "modcache._settings.clear",
    "modcache._settings.configure",
    "modcache._settings.contains",
    "modcache._settings.flush",
    "modcache._settings.reset_stats",
    "modcache._settings.settings",
    "modcache._settings.stats",
    "modcache._stats.Stats",
]


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.linear(images))


def found(name: str) -> Any:
    module, _, member = name.rpartition(".")
    return getattr(importlib.import_module(module), member)


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_of_0_2_0_finds_what_it_names(name: str) -> None:
    module, _, member = name.rpartition(".")
    opcodes = b"c" + f"{module}\n{member}\n".encode() + b"."  # the GLOBAL of protocol 0
    assert pickle.loads(opcodes) is found(name)


@pytest.mark.parametrize("name", NAMES)
def test_fingerprints_have_the_names_of_0_2_0(name: str) -> None:
    assert plain_name(found(name)) == name
    assert trusted_name(found(name)) == name


def test_values_on_disk_have_the_names_of_0_2_0() -> None:
    assert _name_of(Bytes) == "modcache._dataset_values.Bytes"
    assert _name_of(Array) == "modcache._dataset_values.Array"


def test_a_cached_instance_that_0_2_0_pickled_loads() -> None:
    module = modcache.cached(Encoder().requires_grad_(False).eval(), key="content")
    now = pickle.dumps(module, protocol=0)
    before = now.replace(b"cmodcache._cached.module\n", b"cmodcache._cached_module\n")
    assert before != now
    loaded = pickle.loads(before)
    assert type(loaded).__qualname__ == "Encoder"
    assert torch.equal(loaded(torch.ones(1, 2)), module(torch.ones(1, 2)))


# The public names that 0.2.0 did not have.
SINCE = {"KeyedDataset", "keys", "lightning_callback", "register_value", "trainer_callback"}


def test_every_public_name_had_one() -> None:
    names = [name for name in modcache.__all__ if name[0] != "_" and name not in SINCE]
    homes = {getattr(modcache, name).__module__ for name in names}
    assert homes - {"modcache"} <= set(FORMER_MODULES)
