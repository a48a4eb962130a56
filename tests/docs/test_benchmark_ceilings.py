# SPDX-License-Identifier: Apache-2.0
"""`./tests/bench/run --check`: a ceiling that is exceeded, or was not measured, ends with 1."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pages
import pytest

sys.path.insert(0, str(pages.ROOT / "tests" / "bench"))

from suite import __main__ as command_line
from suite import catalogue, rounds, stores
from suite.measurement import Comparison, Measurement, beside_limit

Figures = dict[str, float]
Run = Callable[..., tuple[int, str]]


class Walk(Measurement):
    name = "a walk"
    title = "a walk on foot"

    def comparisons(self) -> list[Comparison]:
        return [
            Comparison("a walk beside a run", "walk", 1.5, "run", ceiling=6),
            Comparison("a walk beside a flight", "walk", 100, "flight"),
        ]

    def limits(self) -> list[Comparison]:
        return [beside_limit("a walk, less standing, beside a ride", "walk", 10, "ride", "stand")]


class Swim(Measurement):
    name = "a swim"
    title = "a swim, which has no ceiling"
    matches = ("none",)


GOOD = {"walk": 5.0, "run": 1.0, "ride": 0.5, "stand": 1.0}
# A machine that had other work.
NOISY = {"walk": 70.0, "run": 1.0, "ride": 0.5, "stand": 1.0}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line over rounds that are given; its exit code and what it printed."""

    def run(of_rounds: list[Figures], *arguments: str, failure: str = "") -> tuple[int, str]:
        def measured(plan: rounds.Plan, keep: object) -> dict[str, rounds.Samples]:
            in_each = {match: of_rounds for match in plan.matches if of_rounds}
            print("measured:", ", ".join(one.name for one in plan.measurements))
            return {one.name: rounds.Samples(in_each, failure) for one in plan.measurements}

        monkeypatch.setattr(catalogue, "all_measurements", lambda: [Walk(), Swim()])
        monkeypatch.setattr(rounds, "run", measured)
        given = arguments or ("--check", "--match", "none")
        monkeypatch.setattr(sys, "argv", ["suite", *given])
        code = command_line.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_ceilings_that_hold_end_with_0(run: Run) -> None:
    code, said = run([GOOD])
    assert code == 0
    assert "a walk beside a run, match=none: ok: 5 x, the ceiling is 6 x" in said
    assert "a walk, less standing, beside a ride, match=none: ok: 8 x" in said
    assert said.endswith("all 2 ceilings hold\n")


def test_the_best_round_counts(run: Run) -> None:
    assert run([NOISY, GOOD, NOISY])[0] == 0


def test_what_is_exceeded_in_every_round_is_named(run: Run) -> None:
    code, said = run([NOISY, GOOD | {"walk": 5.8, "run": 0.5}])
    assert code == 1
    named = "a walk beside a run, match=none: too slow: 11.6 x, the ceiling is 6 x\n"
    assert said.endswith(f"1 of 2 ceilings do not hold:\n{named}")


def test_every_setting_is_checked(run: Run) -> None:
    code, said = run([NOISY], "--check")
    assert code == 1
    assert "4 of 4 ceilings do not hold:" in said
    assert "a walk beside a run, match=input: too slow: 70 x" in said


def test_what_has_no_ceiling_is_measured_only_where_it_is_named(run: Run) -> None:
    assert "measured: a walk\n" in run([GOOD])[1]
    assert "measured: a walk, a swim\n" in run([GOOD], "--check", "--only", "a walk", "swim")[1]
    assert "measured: a walk, a swim\n" in run([GOOD], "--quick")[1]
    code, said = run([GOOD], "--check", "--only", "swim")
    assert code == 2
    assert "has a ceiling" in said


def test_nothing_is_checked_unasked(run: Run) -> None:
    code, said = run([NOISY], "--quick")
    assert code == 0
    assert "ceiling" not in said


@pytest.mark.parametrize(
    ("of_rounds", "failure", "says"),
    [
        ([GOOD], "a walk: it rained", "not measured (a walk: it rained): -, the ceiling is 6 x"),
        ([], "", "not measured (no round)"),
        ([{"walk": 1.0}], "", "not measured (no run here)"),
        ([{"walk": 1.0}, GOOD], "", "not measured (no run here)"),
        ([GOOD | {"walk": math.nan}], "", "too slow: nan x"),
    ],
    ids=("failed", "no-rounds", "no-rival", "no-rival-in-one-round", "no-number"),
)
def test_what_was_not_measured_does_not_pass(
    run: Run, of_rounds: list[Figures], failure: str, says: str
) -> None:
    code, said = run(of_rounds, failure=failure)
    assert code == 1
    assert f"a walk beside a run, match=none: {says}" in said


def test_a_setting_that_it_is_not_measured_with_does_not_pass(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Walk, "matches", ("input",))
    code, said = run([])
    assert code == 1
    assert "a walk beside a run, match=none: not measured (no round)" in said


def test_where_more_is_better_there_is_no_ceiling() -> None:
    with pytest.raises(ValueError, match="more is better"):
        Comparison("a path", "a", 2000, "b", at_least=True, ceiling=1)


def checks() -> list[Comparison]:
    return [found for one in catalogue.all_measurements() for found in one.checked()]


def test_no_ceiling_needs_another_cache() -> None:
    def kinds(of: type[stores.Store]) -> list[type[stores.Store]]:
        return [of, *(kind for below in of.__subclasses__() for kind in kinds(below))]

    others = [kind.name for kind in kinds(stores.Store) if kind.package]
    assert "LMDB" in others
    wanted = [name for check in checks() for name in check.needed()]
    assert not [name for name in wanted for other in others if name.startswith(other)]


def test_every_ceiling_leaves_room_above_its_bound() -> None:
    names = [check.path for check in checks()]
    assert len(names) == len(set(names))
    of_table = [row for one in catalogue.all_measurements() for row in one.comparisons()]
    for row in of_table:
        assert row.ceiling is None or row.ceiling >= 2 * row.bound, row.path


def test_ci_checks_all_that_has_a_ceiling() -> None:
    stage = next(
        line
        for line in (pages.ROOT / "tests" / "run").read_text(encoding="utf-8").splitlines()
        if line.startswith("ratios()")
    )
    assert "--check" in stage
    assert "--only" not in stage
