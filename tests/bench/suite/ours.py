# SPDX-License-Identifier: Apache-2.0
"""modcache in the forms in which it is measured; a number stands for a key, as in stores.py."""

from __future__ import annotations

from typing import Any

import modcache
import torch
from torch import Tensor, nn

from suite.measurement import Place
from suite.values import Size, inputs_of, keys_of, noise

SCOPE = "bench"


def use(place: Place, folder: str = "modcache", **settings: Any) -> None:
    """Points the cache at a directory, with the round's `match`."""
    settings = {"memory": "1GB", **settings}
    modcache.configure(dir=place.folder / folder, match=place.match, log="off", **settings)


class Ours:
    """Calls of one module by number."""

    def __init__(self, size: Size, count: int, module: nn.Module | None = None) -> None:
        self.eager = module or noise(size)
        self.inputs, self.keys = inputs_of(count), keys_of(count)
        self.scripted: Any = torch.jit.script(self.eager)

    def one_key(self, number: int) -> Any:
        return modcache.lookup_or_run(
            self.eager, self.inputs[number], self.keys[number], scope=SCOPE
        )

    def list_of_one(self, number: int) -> Any:
        return modcache.lookup_or_run(
            self.eager, self.inputs[number], [self.keys[number]], scope=SCOPE
        )

    def no_scope(self, number: int) -> Any:
        return modcache.lookup_or_run(self.eager, self.inputs[number], self.keys[number])

    def scripted_key(self, number: int) -> Any:
        return modcache.lookup_or_run(self.scripted, self.inputs[number], self.keys[number])

    def by_operator(self, number: int) -> Tensor:
        """A scripted module through the operator, which says for itself who it is."""
        return torch.ops.cache.lookup_or_run.default(  # type: ignore[no-any-return]
            self.scripted, self.inputs[number], self.keys[number]
        )

    def module_alone(self, number: int) -> Any:
        return self.eager(self.inputs[number])

    def scripted_alone(self, number: int) -> Any:
        return self.scripted(self.inputs[number])


def misses() -> int:
    return modcache.stats()["misses"]


class NoHitError(Exception):
    """A call was not the hit that is measured: the module ran, or the disk was read."""


def expect_no_misses() -> None:
    if misses() != 0:
        raise NoHitError(f"modcache ran the module {misses()} times where all should be hits")


def expect_memory_hits_alone() -> None:
    expect_no_misses()
    if read := modcache.stats()["hits_disk"]:
        raise NoHitError(f"modcache read the disk {read} times where all should be in memory")
