# SPDX-License-Identifier: Apache-2.0
"""The summary of a fill pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from modcache._library.stats import shown_bytes


@dataclass(frozen=True)
class FillSummary:
    """Says what ``modcache.fill`` has done in this process.

    Attributes:
        rows: number of keys; a batch under one key counts as one.
        hits: rows that were stored before, so that nothing ran for them.
        runs: rows for which the module ran.
        stored: rows that were given to the cache; fewer than ``runs`` if something may not be
            cached.
        bytes: size of the tensors in the results of all rows, in bytes.
        seconds: wall time, with the final flush.
        saved_seconds: seconds that the runs of the hits had taken.
        is_complete: False if the pass was interrupted or failed.
        skipped: the mode that forbids storing, so that no more was run; "": none.
    """

    rows: int = 0
    hits: int = 0
    runs: int = 0
    stored: int = 0
    bytes: int = 0
    seconds: float = 0.0
    saved_seconds: float = 0.0
    is_complete: bool = True
    skipped: str = ""

    def as_dict(self) -> dict[str, int | float | bool | str]:
        """Returns the attributes by name."""
        return asdict(self)

    def __str__(self) -> str:
        if self.skipped and not self.rows:
            return f"nothing was run, because nothing would be stored: {self.skipped}"
        end = f"; ended early: {self.skipped}" if self.skipped else ""
        share = f" ({self.hits / self.rows:.0%})" if self.rows else ""
        rate = f", {self.rows / self.seconds:.0f} rows/s" if self.seconds > 0 else ""
        lost = f" ({self.runs - self.stored} not cached)" if self.stored < self.runs else ""
        return (
            f"{'filled' if self.is_complete else 'not finished'}: {self.rows} rows, "
            f"{self.hits} hits{share}, {self.runs} run{lost}, {shown_bytes(self.bytes)} in "
            f"{self.seconds:.1f} s{rate}, {self.saved_seconds:.1f} s saved{end}"
        )
