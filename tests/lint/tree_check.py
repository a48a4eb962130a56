# SPDX-License-Identifier: Apache-2.0
"""What the checks of the tree share: how they are called, what they print, circles in a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def report(faults: Callable[[Path], Sequence[str]]) -> int:
    """Prints what is wrong with the tree that the command line names; the exit status."""
    found = faults(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    for fault in found:
        print(fault)
    return 1 if found else 0


def circle_in(arrows: Mapping[str, Iterable[str]]) -> list[str]:
    """The nodes of one circle along the arrows, its first node again at the end; [] for none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]  # graphlib goes against the arrows
        start = circle.index(min(circle))
        return [*circle[start:], *circle[:start], circle[start]]
    return []
