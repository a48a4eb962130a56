# SPDX-License-Identifier: Apache-2.0
"""What a measurement is: subjects that are timed in turn, and what their times are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Figures = Mapping[str, float]
"""What one round gave: microseconds by subject."""

# The sample of an input that match="input" compares costs so much per key, in microseconds.
SAMPLE_US = 0.15


@dataclass(frozen=True)
class Place:
    """Where and how a round is measured."""

    folder: Path
    match: str
    shared: Path  # what no setting of `match` changes lies here
    quick: bool = False
    round: int = 0

    def of(self, count: int, least: int = 1) -> int:
        """A number of calls or values, an eighth of it for a quick look."""
        return max(least, count // 8) if self.quick else count


@dataclass(frozen=True)
class Comparison:
    """One line of the table: a subject's time, less another's, over the same of a rival.

    `within_us` is allowed on top of the bound; `keys` is how many keys one time stands for. Without
    `over` the difference itself is bounded, in microseconds. `at_least` turns the bound around.

    `bound` is what we strive for. `ceiling` is what no machine should exceed: the value of the best
    round, in its unit, that `--check` allows; None: it is not checked.
    """

    path: str
    of: str
    bound: float
    over: str | None = None
    less: str | None = None
    over_less: str | None = None
    within_us: float = 0.0
    keys: int = 1
    at_least: bool = False
    unit: str = "x"
    ceiling: float | None = None

    def __post_init__(self) -> None:
        if self.at_least and self.ceiling is not None:
            raise ValueError(f"{self.path}: more is better here, so it has no ceiling")

    def needed(self) -> list[str]:
        return [name for name in (self.of, self.over, self.less, self.over_less) if name]

    def words(self) -> str:
        """The bound as a person reads it."""
        if self.over is None:
            return f"{self.bound:g} {self.unit}"
        more = f" + {self.within_us:g} us" if self.within_us else ""
        return f"{'at least ' if self.at_least else ''}{self.bound:g} x{more}"

    def value(self, figures: Figures, match: str) -> tuple[float, float] | None:
        """The ratio or difference of a round, and what share of its bound it takes; None: a gap.

        The share is 1 or less where the bound is kept.
        """
        if any(name not in figures for name in self.needed()):
            return None
        mine = figures[self.of] - (figures[self.less] if self.less else 0.0)
        allowed = self.within_us + (SAMPLE_US * self.keys if match == "input" else 0.0)
        if self.over is None:
            scale = 1e3 if self.unit == "ns" else 1.0
            return mine * scale, mine / (self.bound / scale + allowed)
        theirs = figures[self.over] - (figures[self.over_less] if self.over_less else 0.0)
        theirs = max(theirs, 1e-6)
        if self.at_least:
            return mine / theirs, (theirs - allowed) * self.bound / mine
        return mine / theirs, mine / (self.bound * theirs + allowed)


def beside_limit(
    path: str, of: str, ceiling: float, over: str, less: str | None = None
) -> Comparison:
    """A comparison for `--check` alone, with what every machine has for a rival."""
    return Comparison(path, of, ceiling, over, less, ceiling=ceiling)


class Measurement:
    """Subclasses say what is measured; a round is one call of `measure` in a fresh process."""

    name = ""
    title = ""
    matches: tuple[str, ...] = ("none", "input")
    threads = 1

    def comparisons(self) -> list[Comparison]:
        """Its lines of the table."""
        return []

    def limits(self) -> list[Comparison]:
        """Comparisons that are not in the table, for paths whose rival there CI does not have."""
        return []

    def checked(self) -> list[Comparison]:
        """All that has a ceiling."""
        every = [*self.comparisons(), *self.limits()]
        return [comparison for comparison in every if comparison.ceiling is not None]

    def missing(self) -> str:
        """Why it cannot be measured here; "" if it can."""
        return ""

    def prepare(self, place: Place) -> None:
        """Fills what the rounds read, once for each setting of `match`, in a process of its own."""

    def measure(self, place: Place) -> Figures:
        raise NotImplementedError
