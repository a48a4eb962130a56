# SPDX-License-Identifier: Apache-2.0
"""modcache: ccache for PyTorch modules.

The frozen part of a model runs once per sample; after that its output comes from memory or disk::

    features = modcache.lookup_or_run(encoder, images, key=sample_id)

- **To cache**: ``lookup_or_run``, one call, or ``cached``, which makes an ordinary call of it;
  ``keys``, which gives keys to all cached calls in a block;
  ``lookup_or_run_any`` for rows of many shapes; ``lazy`` for a module that is loaded at its first
  miss; ``content_key`` and ``content_keys`` for samples without a name; ``register_value`` for
  values of classes of one's own.
- **Data**: ``CachedDataset``, ``CachedIterableDataset``; ``fill`` before training; ``prefetch``,
  ``place`` and ``Prefetcher`` while it runs; ``KeyedDataset``, ``trainer_callback`` and
  ``lightning_callback`` in loops of others.
- **To see**: ``stats``, ``metrics``, ``reset_stats``, ``explain``, ``contains``,
  ``fingerprint``. The logger ``"modcache"`` has the messages.
- **To steer**: ``Cache``, ``configure``, ``settings``, ``mode``, ``set_mode``, ``flush``,
  ``clear``, ``refresh_fingerprint``.
- **To deploy**: ``freeze``, ``library_path``, ``cmake_prefix_path``, ``build_info``.

Importing this package loads the native library, which does the work. This package finds the
library, identifies eager modules and explains mistakes.
"""

from __future__ import annotations

import torch

from modcache._library.loading import cmake_prefix_path
from modcache._library.loading import load as _load

_LOADED = _load()
__version__ = _LOADED.version

from modcache._cached.decorator import cached  # noqa: E402
from modcache._cached.keys import keys  # noqa: E402
from modcache._caches.own_cache import Cache  # noqa: E402
from modcache._call.content import content_key, content_keys  # noqa: E402
from modcache._call.registered import register_value  # noqa: E402
from modcache._data.dataset import CachedDataset  # noqa: E402
from modcache._data.stream import CachedIterableDataset  # noqa: E402
from modcache._explain.explanation import Explanation  # noqa: E402
from modcache._explain.report import explain  # noqa: E402
from modcache._export.freeze import freeze  # noqa: E402
from modcache._feed.prefetcher import Prefetcher  # noqa: E402
from modcache._fill.fill_pass import fill  # noqa: E402
from modcache._fill.summary import FillSummary  # noqa: E402
from modcache._lazy.model import Lazy, lazy  # noqa: E402
from modcache._library.exit_summary import log_at_exit as _log_at_exit  # noqa: E402
from modcache._library.log import read_log as _read_log  # noqa: E402
from modcache._library.mode import mode, set_mode  # noqa: E402
from modcache._library.optimizers import watch_optimizers as _watch_optimizers  # noqa: E402
from modcache._library.settings import (  # noqa: E402
    clear,
    configure,
    contains,
    flush,
    metrics,
    reset_stats,
    settings,
    stats,
)
from modcache._library.workers import flush_at_worker_end as _flush_at_worker_end  # noqa: E402
from modcache._library.workers import (  # noqa: E402
    send_settings_to_workers as _send_settings_to_workers,
)
from modcache._lookup.lookup import (  # noqa: E402
    fingerprint,
    lookup_or_run,
    lookup_or_run_any,
    refresh_fingerprint,
)
from modcache._lookup.prefetch import place, prefetch  # noqa: E402
from modcache._loops.keyed_dataset import KeyedDataset  # noqa: E402
from modcache._loops.lightning import lightning_callback  # noqa: E402
from modcache._loops.trainer import trainer_callback  # noqa: E402

# One source line serves eager and scripted models: torch.jit.script compiles a call of the Python
# function into the operator.
for _function in (lookup_or_run, content_key, content_keys):
    torch.jit._builtins._register_builtin(_function, f"cache::{_function.__name__}")
_read_log(_LOADED.library)
_flush_at_worker_end()
_send_settings_to_workers()
_log_at_exit()
_watch_optimizers()


def library_path() -> str:
    """Returns the absolute path of the native library that was loaded."""
    return _LOADED.library


def build_info() -> dict[str, str]:
    """Tells what this installation consists of, for bug reports.

    Returns:
        ``version`` of modcache; ``library``, the path of the native library; ``built_for_torch``,
        the version it was built against, and ``torch``, the version that is imported;
        ``compiled_part``, the path of the part that is compiled for this Python, or ``none`` and
        the reason. Without that part, calls with eager modules are slower.

    >>> import modcache
    >>> modcache.build_info()["library"] == modcache.library_path()
    True
    """
    return {
        "version": _LOADED.version,
        "library": _LOADED.library,
        "built_for_torch": _LOADED.built_for_torch,
        "torch": str(torch.__version__),
        "compiled_part": _LOADED.compiled_part,
    }


__all__ = [
    "Cache",
    "CachedDataset",
    "CachedIterableDataset",
    "Explanation",
    "FillSummary",
    "KeyedDataset",
    "Lazy",
    "Prefetcher",
    "__version__",
    "build_info",
    "cached",
    "clear",
    "cmake_prefix_path",
    "configure",
    "contains",
    "content_key",
    "content_keys",
    "explain",
    "fill",
    "fingerprint",
    "flush",
    "freeze",
    "keys",
    "lazy",
    "library_path",
    "lightning_callback",
    "lookup_or_run",
    "lookup_or_run_any",
    "metrics",
    "mode",
    "place",
    "prefetch",
    "refresh_fingerprint",
    "register_value",
    "reset_stats",
    "set_mode",
    "settings",
    "stats",
    "trainer_callback",
]
