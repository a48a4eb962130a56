# SPDX-License-Identifier: Apache-2.0
"""The library's messages, as records of Python's ``logging``: logger "modcache".

The setting ``log`` says which messages there are; the logger's level and handlers, what becomes of
them. Where nobody has configured any handler they go to standard error, as they do in a host
without Python.

The library hands them over on a short-lived thread of its own (torchscript_ops/log_reader.h), a
moment after they arose; ``modcache.flush()`` and the end of the process wait for them. In the
forked children of ``multiprocessing`` the same holds.
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

logger = logging.getLogger("modcache")
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}  # csrc/base/log.h


def read_log(library: str) -> None:
    """From now on messages are records of ``logging``. ``library``: the path of the loaded one."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(library)
        atexit.register(stop)
    _library.modcache_read_log(_READER)


def stop() -> None:
    """The library writes to standard error itself again, as it does when Python has ended."""
    if _library is not None:
        _library.modcache_read_log(_Reader())
    _deliver_quietly()


def deliver() -> None:
    """Logs what waits, and returns when what another thread took is logged as well."""
    with _delivering:
        for level, message in zip(*torch.ops.cache._take_log(), strict=True):
            # What a handler does wrong must not reach whoever called the cache.
            with contextlib.suppress(Exception):
                _log(_LEVELS.get(level, logging.WARNING), message)


def _log(level: int, message: str) -> None:
    if logger.hasHandlers():
        logger.log(level, "%s", message)
    elif not logger.disabled and level >= logger.level and level > logger.manager.disable:
        # What logging.lastResort would do, and who it is that speaks.
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
_Reader = ctypes.CFUNCTYPE(None)
_READER = _Reader(_deliver_quietly)  # kept: the library has its address
