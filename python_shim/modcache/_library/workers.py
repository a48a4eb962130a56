# SPDX-License-Identifier: Apache-2.0
"""Multiprocessing workers: their settings and memory at the start, a flush at the end.

Workers end with ``os._exit``, so the library's own exit handler does not run there. Spawned workers
start without settings, and get those of their parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from multiprocessing import context, process, util
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import get_worker_info

from modcache._library.log import deliver

_configured_here: set[str] = set()  # options that code of this very process has set
_is_prepared = False


def _flush() -> None:
    torch.ops.cache.flush()
    deliver()


def _flush_when_worker_ends(_: object = None) -> None:
    util.Finalize(None, _flush, exitpriority=0)


def flush_at_worker_end() -> None:
    """Registers the flush in this process if it is a worker, and in those forked from it."""
    # register_after_fork keeps an entry while its object lives, so it gets the function as object.
    util.register_after_fork(_flush_when_worker_ends, _flush_when_worker_ends)
    if process.parent_process() is not None:  # a spawned worker that imports modcache
        _flush_when_worker_ends()


def note_configured(options: Iterable[str]) -> None:
    _configured_here.update(options)


class SentSettings(NamedTuple):
    """The settings in force in the thread that starts a process."""

    of_process: dict[str, str]
    thread_mode: str  # the mode that guards leave; "on" if they forbid nothing


def settings_for_worker() -> SentSettings | None:
    """Returns the settings while something is pickled for a new process; else None."""
    if context.get_spawning_popen() is None:
        return None
    settings = dict(torch.ops.cache.settings())
    settings["dir"] = str(Path(settings["dir"]).absolute())
    mode = str(torch.ops.cache.mode())
    return SentSettings(settings, "on" if mode == settings["mode"] else mode)


def adopt_settings(sent: SentSettings | None) -> None:
    """Takes over the parent's settings in a new process, as a fork does.

    Its main thread is then inside the guards of the thread that started it, and stays there.
    """
    if sent is not None:
        torch.ops.cache.configure(sent.of_process)
        torch.ops.cache._enter_mode(sent.thread_mode)
        _configured_here.clear()


def prepare_dataset_worker() -> None:
    """Disables the memory tier in a DataLoader's worker, unless its own code configured one.

    Each look-up of samples calls this first. The page cache holds samples once for all workers.
    """
    global _is_prepared
    if _is_prepared or get_worker_info() is None:
        return
    _is_prepared = True
    if "memory" not in _configured_here:
        torch.ops.cache._disable_memory_tier()


os.register_at_fork(after_in_child=_configured_here.clear)
