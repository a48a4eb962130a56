# SPDX-License-Identifier: Apache-2.0
"""The program in a terminal of a certain size."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Any

from program import binary


class Terminal:
    """A pseudo-terminal with a program of ours in it, which may still run."""

    def __init__(
        self, *arguments: str | Path, columns: int, rows: int = 24, **options: Any
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [binary("modcache"), *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # signals come from it
            **options,
        )
        self._theirs = theirs
        self.text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def settings_now(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    def read_until(self, expected: str, within_s: float = 30) -> str:
        """Returns what came since the last read, up to and with this."""
        begin = len(self.text)
        end = time.monotonic() + within_s
        while expected not in self.text[begin:]:
            assert time.monotonic() < end, f"no {expected!r} in {self.text[begin:]!r}"
            self._read_some(0.2)
        return self.text[begin:]

    def read_to_end(self, within_s: float = 30) -> str:
        """Waits until the program leaves, and returns all that it ever wrote."""
        end = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < end, "the program does not leave"
            self._read_some(0.05)
        while self._read_some(0):
            pass
        return self.text

    def _read_some(self, within_s: float) -> bool:
        if not select.select([self._ours], [], [], within_s)[0]:
            return False
        self.text += os.read(self._ours, 1 << 16).decode(errors="replace")
        return True


def shown_in_terminal(*arguments: str | Path, columns: int) -> list[str]:
    """Runs a command to its end, and returns the lines that it shows."""
    with Terminal(*arguments, columns=columns) as terminal:
        return terminal.read_to_end().replace("\r\n", "\n").splitlines()
