# SPDX-License-Identifier: Apache-2.0
"""Counters that read as a table."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

# A line: its indentation, its name, a number, and a text after that.
_Line = tuple[int, str, str, str]

_HITS = {
    "hits_memory": "hits from memory",
    "hits_disk": "hits from disk",
    "hits_remote": "hits from a server",
}
_BYPASSED = {
    "bypassed_off": "the mode was off",
    "bypassed_grad": "the result requires grad",
    "bypassed_impure": "no function of state and input",
    "bypassed_type": "a value that cannot be stored",
    "bypassed_rows": "a batch that cannot be cached by row",
    "bypassed_identity": "a module that cannot be identified",
    "bypassed_verify": "a scope that was switched off",
}
_TROUBLE = {
    "key_conflicts": "keys of another input",
    "verify_differences": "results unlike the stored one",
    "evicted": "evicted for want of room",
    "corrupt": "damaged entries",
    "errors": "failures of the cache",
    "remote_dropped": "results not written to the server",
}
_REMOTE = {
    "remote_stored": "entries written to the server",
}
_TIERS = {"memory": "in memory", "disk": "on disk"}


class Stats(dict[str, int]):
    """A plain dict of the counters, by name, that prints as a table.

    It equals a plain ``dict``, and pickles and copies as one.

    >>> Stats(hits_memory=3, misses=1, stored=1)
    keys looked up            4
      hits from memory        3   75.0 %
      misses                  1   25.0 %
    results stored            1
    """

    def __repr__(self) -> str:
        lines = list(_lines(self))
        if not lines:
            return "no call so far"
        names = [f"{'  ' * indent}{name}" for indent, name, _, _ in lines]
        wide = max(map(len, names))
        wide_number = max(8, *(len(number) for _, _, number, _ in lines))
        return "\n".join(
            f"{name:<{wide}} {number:>{wide_number}} {more:>8}".rstrip()
            for name, (_, _, number, more) in zip(names, lines, strict=True)
        )

    __str__ = __repr__

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left;padding-left:{1 + indent}em">{html.escape(name)}</td>'
            f"<td>{number}</td><td>{more}</td></tr>"
            for indent, name, number, more in _lines(self)
        )
        return f"<table>{rows}</table>"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _lines(counts: dict[str, int]) -> Iterator[_Line]:
    """Yields the lines for counters that are not zero, in groups."""
    yield from _lines_of_calls(counts)
    yield from _group("run without the cache", _BYPASSED, counts)
    yield from _group("trouble", _TROUBLE, counts)
    for counter, name in _REMOTE.items():
        if counts.get(counter):
            yield 0, name, f"{counts[counter]:,}", ""
    for tier, name in _TIERS.items():
        entries, size = counts.get(f"entries_{tier}", 0), counts.get(f"bytes_{tier}", 0)
        if entries:
            yield 0, f"entries {name}", f"{entries:,}", shown_bytes(size)
    run_us, saved_us = counts.get("run_us", 0), counts.get("saved_us", 0)
    if run_us:
        yield 0, "time in modules that ran", shown_time(run_us), ""
    if saved_us:
        # The share of the time that all calls would have taken without the cache.
        share = f"{100 * saved_us / (saved_us + run_us):.1f} %"
        yield 0, "time saved by hits", shown_time(saved_us), share


def _lines_of_calls(counts: dict[str, int]) -> Iterator[_Line]:
    found = {name: counts.get(name, 0) for name in (*_HITS, "misses")}
    total = sum(found.values())
    if total:
        yield 0, "keys looked up", f"{total:,}", ""
    for name, number in found.items():
        if number:
            yield 1, _HITS.get(name, name), f"{number:,}", f"{100 * number / total:.1f} %"
    if counts.get("stored"):
        yield 0, "results stored", f"{counts['stored']:,}", ""


def _group(title: str, names: dict[str, str], counts: dict[str, int]) -> Iterator[_Line]:
    found = {name: counts[name] for name in names if counts.get(name)}
    if found:
        yield 0, title, f"{sum(found.values()):,}", ""
    for name, number in found.items():
        yield 1, names[name], f"{number:,}", ""


def shown_bytes(size: int) -> str:
    """Returns a size as text, in powers of 1000, like ``"2GB"`` in the settings.

    >>> shown_bytes(512), shown_bytes(3_000_000)
    ('512 B', '3.0 MB')
    """
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def shown_time(microseconds: int) -> str:
    """Returns a time as text.

    >>> shown_time(250), shown_time(1_500_000), shown_time(7_200_000_000)
    ('250 us', '1.50 s', '2.0 h')
    """
    if microseconds < 1000:
        return f"{microseconds} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.1f} ms"
    seconds = microseconds / 1_000_000
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
