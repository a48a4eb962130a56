# SPDX-License-Identifier: Apache-2.0
"""The progress bar of a fill pass."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from modcache._fill.summary import FillSummary
from modcache._library.stats import shown_bytes


class Progress:
    """Shows the progress of a fill. As a context manager it closes the bar.

    A file that cannot be written to (a full disk, a closed terminal) ends the bar, not the fill.

    Args:
        wanted: True: a bar on the standard error stream, if that is a terminal; False: none; a
            file: a bar there, even if it is no terminal.
        is_first: whether this is the first rank; other ranks show no bar on standard error.
        total: the number of batches, if known.
    """

    def __init__(self, wanted: Any, is_first: bool, total: int | None) -> None:
        if not isinstance(wanted, bool) and not hasattr(wanted, "write"):
            raise TypeError(
                f"fill: progress must be True, False or a file, but got {type(wanted).__name__}."
            )
        self._file: TextIO | None = None
        if wanted is True and is_first and sys.stderr is not None and sys.stderr.isatty():
            self._file = sys.stderr
        elif not isinstance(wanted, bool):
            self._file = wanted
        self.is_silent = wanted is False
        self._total = total
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._file is not None:
            from tqdm import tqdm  # type: ignore[import-untyped]

            with self._at_the_risk_of_the_bar():
                self._bar = tqdm(total=self._total, unit="batch", desc="fill", file=self._file)
        return self

    def show(self, done: FillSummary) -> None:
        """Shows what is done after a batch."""
        if self._bar is None:
            return
        share = done.hits / done.rows if done.rows else 0.0
        rate = done.rows / done.seconds if done.seconds > 0 else 0.0
        text = (
            f"{rate:.0f} rows/s, {share:.0%} hits, {done.saved_seconds:.1f} s saved, "
            f"{shown_bytes(done.bytes)}"
        )
        if done.stored < done.runs:
            text += f", {done.runs - done.stored} NOT CACHED"
        with self._at_the_risk_of_the_bar():
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with self._at_the_risk_of_the_bar():
                self._bar.close()

    def say(self, text: str) -> None:
        """Prints a line besides the bar. REQUIRES: not ``is_silent``."""
        with self._at_the_risk_of_the_bar():
            print(text, file=self._file or sys.stderr, flush=True)

    @contextlib.contextmanager
    def _at_the_risk_of_the_bar(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # a closed file says ValueError
            if self._bar is not None:
                self._bar.disable = True  # so that its destructor writes nothing
            self._bar = None
