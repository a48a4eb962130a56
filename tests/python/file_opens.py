# SPDX-License-Identifier: Apache-2.0
"""Whether anybody opened a file: by the kernel's word, whichever process or library it was."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_IN_OPEN = 0x20
_libc = ctypes.CDLL(None, use_errno=True)


class FileOpens:
    """Watches one file from when this is made. Opens in quick succession may count as one."""

    def __init__(self, path: Path) -> None:
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if _libc.inotify_add_watch(self._inotify, os.fsencode(path), _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {path}")

    def any_so_far(self) -> bool:
        """Whether it was opened since it was asked last."""
        try:
            return bool(os.read(self._inotify, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._inotify)
