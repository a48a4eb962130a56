# SPDX-License-Identifier: Apache-2.0
"""Whether anybody opened a file: by the kernel's word, whichever process or library it was."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_IN_CLOSE, _IN_OPEN = 0x08 | 0x10, 0x20
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class FileOpens:
    """Watches one file from when this is made."""

    def __init__(self, path: Path) -> None:
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if _libc.inotify_add_watch(self._inotify, os.fsencode(path), _IN_OPEN | _IN_CLOSE) < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {path}")

    def any_so_far(self) -> bool:
        """Whether it was opened since it was asked last."""
        return self.count_so_far() > 0

    def count_so_far(self) -> int:
        """How often it was, one open file after the other."""
        try:
            events = os.read(self._inotify, 65536)
        except BlockingIOError:
            return 0
        return sum(mask & _IN_OPEN != 0 for _, mask, _, _ in _EVENT.iter_unpack(events))

    def close(self) -> None:
        os.close(self._inotify)
