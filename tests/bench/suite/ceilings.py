# SPDX-License-Identifier: Apache-2.0
"""Holds comparisons against their ceilings, for CI: best rounds, since noise only adds time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite import table
from suite.measurement import Comparison, Measurement
from suite.rounds import Plan, Samples


@dataclass(frozen=True)
class Verdict:
    """What one comparison with a ceiling came to, with one setting of `match`."""

    path: str
    unit: str
    ceiling: float
    match: str
    least: float | None = None
    fault: str = ""  # why it does not pass; "" where it does

    def words(self) -> str:
        """One line for a person."""
        figure = "-" if self.least is None else f"{table.short(self.least)} {self.unit}"
        limit = f"the ceiling is {self.ceiling:g} {self.unit}"
        return f"{self.path}, match={self.match}: {self.fault or 'ok'}: {figure}, {limit}"


def verdicts(plan: Plan, found: Mapping[str, Samples]) -> list[Verdict]:
    """One for each comparison with a ceiling and each setting that its measurement has."""
    return [
        _of_match(comparison, match, found[one.name])
        for one in plan.measurements
        for match in _settings(one, plan)
        for comparison in one.checked()
    ]


def _settings(one: Measurement, plan: Plan) -> Sequence[str]:
    """Those wanted that it is measured with; where there are none, its lines say so."""
    return [match for match in plan.matches if match in one.matches] or plan.matches


def _of_match(comparison: Comparison, match: str, samples: Samples) -> Verdict:
    ceiling = comparison.ceiling
    assert ceiling is not None
    rounds = samples.rounds.get(match, [])
    lacking = list(_lacking(comparison, samples, match))
    if lacking:
        fault = f"not measured ({', '.join(lacking)})"
        return Verdict(comparison.path, comparison.unit, ceiling, match, fault=fault)
    ratios = [value[0] for figures in rounds if (value := comparison.value(figures, match))]
    # A ratio that is no number is not within any ceiling, so that it does not pass.
    kept = any(ratio <= ceiling for ratio in ratios)
    fault = "" if kept else "too slow"
    return Verdict(comparison.path, comparison.unit, ceiling, match, min(ratios), fault)


def _lacking(comparison: Comparison, samples: Samples, match: str) -> Iterator[str]:
    """What was not measured, so that nothing can be said."""
    rounds = samples.rounds.get(match, [])
    if samples.failure:
        yield samples.failure
    elif not rounds:
        yield "no round"
    for name in comparison.needed():
        if any(name not in figures for figures in rounds):
            yield f"no {name} here"


def faults(of_run: Sequence[Verdict]) -> list[str]:
    return [verdict.words() for verdict in of_run if verdict.fault]


def as_text(of_run: Sequence[Verdict]) -> str:
    """All that was checked, then what does not pass, which a log should end with."""
    failed = faults(of_run)
    passed = [verdict.words() for verdict in of_run if not verdict.fault]
    count = f"{len(failed)} of {len(of_run)} ceilings do not hold"
    last = f"{count}:" if failed else f"all {len(of_run)} ceilings hold"
    return "\n".join(["the best round of each path with a ceiling:", *passed, last, *failed])
