# SPDX-License-Identifier: Apache-2.0
"""One line at the end of each epoch, about what the cache did in it."""

from __future__ import annotations

import sys

from modcache._library.settings import stats
from modcache._library.stats import shown_time


class Epoch:
    """Counts from its start, or from the last ``reset_stats`` in it, where that can be seen."""

    def __init__(self) -> None:
        self._before = dict(stats())

    def line(self, number: int) -> str:
        """Says how many rows hit since then: ``epoch 2: 100 % hits, 41 s saved``."""
        now = dict(stats())
        counters = [name for name in now if not name.startswith(("entries_", "bytes_"))]
        if any(now[name] < self._before[name] for name in counters):  # reset_stats was called
            self._before = dict.fromkeys(now, 0)
        grown = {name: now[name] - self._before[name] for name in counters}
        hits = grown["hits_memory"] + grown["hits_disk"] + grown["hits_remote"]
        count = hits + grown["misses"]
        off = grown["bypassed_off"]
        uncached = sum(rows for name, rows in grown.items() if name.startswith("bypassed_")) - off
        nothing = "the cache was off" if off else "nothing was looked up"
        text = f"{100 * hits // count} % hits" if count else nothing
        text += f", {shown_time(grown['saved_us'])} saved" if hits else ""
        text += f", {uncached} not cached (see the warnings)" if uncached else ""
        return f"epoch {number}: {text}"


def say(line: str) -> None:
    """Prints a line without tearing progress bars."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.write(line, file=sys.stderr)
