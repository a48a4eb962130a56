# SPDX-License-Identifier: Apache-2.0
"""modcache as two caches of the peers' benchmark: give it this file with ``--extra``.

README.md beside this file says how. The library is the one that ``import modcache`` finds.
"""

from __future__ import annotations

import adapters
import modcache
import torch


class _Modcache(adapters.Adapter):
    native_batch = True
    torch_peer = True  # also runs the phase of batched fills
    result = "copy"
    memory = ""

    def open(self) -> None:
        modcache.configure(dir=self.folder, memory=self.memory)
        modcache.reset_stats()
        with torch.no_grad():
            self.traced = torch.jit.trace(self.module, torch.zeros(1, 1))

    # A row of one: what get() stored, get_batch() finds. (One key for a whole output, a str, is
    # another entry than a row of a batch.)
    def get(self, i: int, x: torch.Tensor, key: str) -> torch.Tensor:
        return self.get_batch([i], x, [key])

    def get_batch(self, ids: list[int], X: torch.Tensor, keys: list[str]) -> torch.Tensor:  # noqa: N803
        with torch.no_grad():
            return torch.ops.cache.lookup_or_run(self.traced, X, keys)

    def computed(self) -> int:
        return modcache.stats()["misses"]

    def close(self) -> None:
        modcache.flush()


@adapters.register
class Modcache(_Modcache):
    name = "modcache"
    mem_tier = True
    memory = "1GB"
    note = "the defaults"


@adapters.register
class ModcacheDisk(_Modcache):
    name = "modcache, memory=0"
    memory = "0"
    note = "no memory tier: every hit is read from disk"


@adapters.register
class ModcacheWhole(_Modcache):
    name = "modcache, one key for a whole output"
    native_batch = False
    mem_tier = True
    memory = "1GB"
    note = "the defaults; the form for single samples"

    def get(self, i: int, x: torch.Tensor, key: str) -> torch.Tensor:
        with torch.no_grad():
            return torch.ops.cache.lookup_or_run(self.traced, x, key)

    get_batch = adapters.Adapter.get_batch
