# SPDX-License-Identifier: Apache-2.0
"""The program in a terminal of a certain size."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

from program import binary


def shown_in_terminal(*arguments: str | Path, columns: int) -> list[str]:
    """Runs a command in a pseudo-terminal to its end, and returns the lines that it shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    text = b""
    with subprocess.Popen(
        [binary("modcache"), *arguments], stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        while True:
            try:
                text += os.read(ours, 1 << 16)
            except OSError:  # the program has left
                break
    os.close(ours)
    return text.decode(errors="replace").replace("\r\n", "\n").splitlines()
