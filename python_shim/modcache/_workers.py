# SPDX-License-Identifier: Apache-2.0
"""Flushes at the end of multiprocessing workers.

They leave by ``os._exit``, so that the library's own exit handler does not run there.
"""

from __future__ import annotations

from multiprocessing import process, util

import torch

from modcache._logging import deliver


def _flush() -> None:
    torch.ops.cache.flush()
    deliver()


def _flush_when_worker_ends(_: object = None) -> None:
    util.Finalize(None, _flush, exitpriority=0)


def flush_at_worker_end() -> None:
    """Registers the flush in this process if it is a worker, and in those forked from it."""
    # Only the object matters to register_after_fork: it lives as long as what it is kept for.
    util.register_after_fork(_flush_when_worker_ends, _flush_when_worker_ends)
    if process.parent_process() is not None:  # a spawned worker that imports modcache
        _flush_when_worker_ends()
