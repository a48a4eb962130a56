# SPDX-License-Identifier: Apache-2.0
"""Runs the rounds: in each, every measurement once, so that the whole run sees the same machine."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite import worker
from suite.measurement import Measurement, Place

MATCHES = ("none", "input")


@dataclass
class Samples:
    """The figures of each round by setting of `match`, or why there are none."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Plan:
    measurements: Sequence[Measurement]
    rounds: int = 5
    quick: bool = False
    matches: Sequence[str] = MATCHES
    work: Path | None = None


class Progress:
    """One line on standard error for each step, with what is left."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.started = steps, 0, time.monotonic()

    def step(self, what: str) -> None:
        self.done += 1
        spent = time.monotonic() - self.started
        left = spent / max(1, self.done - 1) * (self.steps - self.done + 1)
        guess = f", some {left / 60:.0f} min left" if self.done > 1 else ""
        clock = f"[{self.done}/{self.steps}, {spent:.0f} s{guess}]"
        print(f"{clock} {what}", file=sys.stderr, flush=True)


def run(plan: Plan, after_round: Callable[[dict[str, Samples]], None]) -> dict[str, Samples]:
    """Every measurement's samples by name; `after_round` gets what there is after each round."""
    found = {one.name: Samples(failure=one.missing()) for one in plan.measurements}
    pairs = [
        (one, match)
        for one in plan.measurements
        for match in plan.matches
        if match in one.matches and not found[one.name].failure
    ]
    progress = Progress(len(pairs) * (plan.rounds + 1))
    root = Path(tempfile.mkdtemp(prefix="modcache-bench-", dir=plan.work))
    try:
        names = [one.name for one in plan.measurements]
        folders = {pair: root / f"{names.index(pair[0].name)}-{pair[1]}" for pair in pairs}
        for one, match in pairs:
            progress.step(f"fill: {one.name}, match={match}")
            _step(found[one.name], worker.prepare, one, _place(plan, folders[one, match], match, 0))
        for number in range(1, plan.rounds + 1):
            for one, match in pairs:
                samples = found[one.name]
                progress.step(f"round {number}: {one.name}, match={match}")
                place = _place(plan, folders[one, match], match, number)
                figures = _step(samples, worker.measure, one, place)
                if figures:
                    samples.rounds.setdefault(match, []).append(figures)
            after_round(found)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found


def _place(plan: Plan, folder: Path, match: str, number: int) -> Place:
    folder.mkdir(exist_ok=True)
    shared = folder.with_name(f"{folder.name.partition('-')[0]}-shared")
    shared.mkdir(exist_ok=True)
    return Place(folder, match, shared, plan.quick, number)


def _step(samples: Samples, function: Any, one: Measurement, place: Place) -> Any:
    """A measurement that failed once is not started again; the run goes on with the others."""
    if samples.failure:
        return None
    try:
        return worker.run(function, one.name, place)
    except worker.RoundFailedError as failure:
        samples.failure = str(failure)
        print(f"failed: {failure}", file=sys.stderr, flush=True)
        return None
