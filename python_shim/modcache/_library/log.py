# SPDX-License-Identifier: Apache-2.0
"""The library's messages, as records of Python's ``logging``: logger "modcache".

The setting ``log`` decides which messages there are. The logger's level and handlers decide where
they go. Without any handler they go to standard error, as in a host without Python.

The library hands them over on a short-lived thread of its own (torchscript_ops/log_reader.h), a
moment after they arose. ``modcache.flush()`` and the end of the process wait for them, also in the
forked children of ``multiprocessing``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading

import torch

from modcache._library.tasks import obeying_tasks

logger = logging.getLogger("modcache")
_SETTINGS = {
    "off": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
}
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}  # csrc/base/log.h


def read_log(library: str) -> None:
    """Makes messages records of ``logging``. ``library``: the path of the loaded library."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(library)
        atexit.register(stop)
    _library.modcache_read_log(_READER)


def stop() -> None:
    """Has the library write to standard error itself again, as after the end of Python."""
    if _library is not None:
        _library.modcache_read_log(_Reader())
    _deliver_quietly()


def deliver() -> None:
    """Logs the waiting messages; returns when those that another thread took are logged, too."""
    with _delivering:
        for level, message in zip(*torch.ops.cache._take_log(), strict=True):
            # An error in a handler must not fail the call of the cache.
            with contextlib.suppress(Exception):
                _log(_LEVELS.get(level, logging.WARNING), message)


@obeying_tasks
def write(level: int, message: str) -> None:
    """Logs a message of the package's own, if the setting ``log`` has its level."""
    wanted = _SETTINGS.get(torch.ops.cache.settings()["log"], logging.WARNING)
    if level >= wanted:
        _log(level, message)


def first_warning() -> str:
    """Returns the first message of this process that was a warning; "": there was none."""
    return _first_warning


def _log(level: int, message: str) -> None:
    global _first_warning
    if level == logging.WARNING:
        _first_warning = _first_warning or message
    if logger.hasHandlers():
        logger.log(level, "%s", message)
    elif not logger.disabled and level >= logger.level and level > logger.manager.disable:
        # Like logging.lastResort, with the name of the logger.
        sys.stderr.write(f"modcache: {logging.getLevelName(level).lower()}: {message}\n")


def _deliver_quietly() -> None:
    with contextlib.suppress(Exception):
        deliver()


def _renew_lock_in_child() -> None:
    global _delivering
    _delivering = threading.RLock()


_delivering = threading.RLock()  # a handler may call modcache.flush()
os.register_at_fork(after_in_child=_renew_lock_in_child)
_library: ctypes.CDLL | None = None
_first_warning = ""
_Reader = ctypes.CFUNCTYPE(None)
_READER = _Reader(_deliver_quietly)  # kept alive, since the library has its address
