# SPDX-License-Identifier: Apache-2.0
"""Worker processes: their settings and memory at the start, a flush at the end.

A worker of any start method has the settings of its parent, as after a fork. A new interpreter
(spawn, forkserver, loky) gets the explicitly set options in the configuration that multiprocessing
sends to each process, next to the authentication key.

Workers end with ``os._exit``, so the library's own exit handler does not run there.
"""

from __future__ import annotations

import weakref
from multiprocessing import process, util
from typing import Any

import torch
from torch.utils.data import get_worker_info

from modcache._library.explicit import explicit_options, inherit, is_set_here
from modcache._library.log import deliver
from modcache._library.mode import modes_of_thread

_NAME = "modcache"  # in the configuration of a process
_beginning: weakref.ref[Any] | None = None  # the object of a process that is starting
_is_prepared = False
_inherited_modes: list[str] = []  # of the thread that started this process


def _flush() -> None:
    torch.ops.cache._flush_all()
    deliver()


def _flush_when_worker_ends(_: object = None) -> None:
    util.Finalize(None, _flush, exitpriority=0)


def flush_at_worker_end() -> None:
    """Registers the flush in this process if it is a worker, and in those forked from it."""
    # register_after_fork keeps an entry while its object lives, so it gets the function as object.
    util.register_after_fork(_flush_when_worker_ends, _flush_when_worker_ends)
    if process.parent_process() is not None:  # a spawned worker that imports modcache
        _flush_when_worker_ends()


class _SettingsOfParent:
    """Pickles as a dict of the settings at that time. Child processes get it before they start.

    The dict is plain, so that a child that does not use modcache does not import it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        sent = {"options": explicit_options(), "modes": [*_inherited_modes, *modes_of_thread()]}
        return dict, (list(sent.items()),)


def send_settings_to_workers() -> None:
    """Takes over the settings of the parent process, and sends those in force to child processes.

    A process that imports modcache while it runs its target has its configuration already. Before
    that, importing the main module or the target may import modcache. multiprocessing then calls a
    function when the target is about to run: the registered one (forkserver, loky); with spawn,
    the callback of the object that stands for the process until then, and is dropped.
    """
    global _beginning
    util.register_after_fork(_exchange_settings, _exchange_settings)
    current = process.current_process()
    if getattr(current, "_inheriting", False):
        _beginning = weakref.ref(current, _exchange_settings)
    _exchange_settings()


def _exchange_settings(_: object = None) -> None:
    configuration = getattr(process.current_process(), "_config", None)
    if not isinstance(configuration, dict):
        return
    sent = configuration.get(_NAME)
    configuration[_NAME] = _SettingsOfParent()
    if isinstance(sent, dict):
        _adopt(sent["options"], sent["modes"])


def _adopt(options: dict[str, str], modes: list[str]) -> None:
    """Takes over what the parent sent.

    The main thread is then inside the mode guards of the thread that started this process.
    """
    inherit(options)
    for mode in modes:
        torch.ops.cache._enter_mode(mode)
    _inherited_modes[:] = modes


def prepare_dataset_worker() -> None:
    """Disables the memory tier in a DataLoader's worker, unless its own code configured one.

    Each lookup of samples calls this first. The page cache holds samples once for all workers.
    """
    global _is_prepared
    if _is_prepared or get_worker_info() is None:
        return
    _is_prepared = True
    if not is_set_here("memory"):
        torch.ops.cache._disable_memory_tier()
