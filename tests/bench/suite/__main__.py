# SPDX-License-Identifier: Apache-2.0
"""The command line; tests/bench/run starts it with the right environment."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from suite import catalogue, ceilings, figures, page, profiler, results, rounds, table
from suite.measurement import Measurement

DESCRIPTION = """\
Measures modcache, other caches and the limits of the machine in turn, and prints each path's time
over its rival's beside its bound: the median of the rounds, and the least and the most.

--peers, --no-build and --build FOLDER are for the script that starts this: the first makes an
environment with other caches in build/venv-peers and measures them too, the second measures what
is built already, in build/release or in the folder that the third names.
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/bench/run",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="name what can be measured")
    add("--only", nargs="+", metavar="NAME", help="those whose names contain one of these")
    add("--rounds", type=_at_least_one, help="how often each is measured; 5, with --quick 1")
    add("--quick", action="store_true", help="an eighth of the calls, one round: a rough look")
    add("--match", nargs="+", choices=rounds.MATCHES, default=rounds.MATCHES,
        help="settings to measure with; both")  # fmt: skip
    add("--check", action="store_true",
        help="exit with 1 and name the paths whose best round exceeds their ceiling, as CI does; "
        "without --only measure what has a ceiling alone")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="where the figures go, after each round")
    add("--figures", type=Path, metavar="FOLDER", help="where they are drawn, as SVG")
    add("--report", type=Path, metavar="JSON",
        help="measure nothing; write the page and the figures beside this file")  # fmt: skip
    add("--profile", nargs=2, metavar=("NAME", "TOOL"),
        help="run one under 'perf' or 'callgrind', other caches left out; "
        "what it saw goes to build/profiles")  # fmt: skip
    add("--work", type=Path, metavar="FOLDER",
        help="where the caches are made, 8 GB at most; the temporary folder")  # fmt: skip
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


class UsageError(Exception):
    """What was asked for cannot be done; the text says what can."""


def chosen(names: list[str] | None) -> list[Measurement]:
    """What was named, in the order of the catalogue."""
    every = catalogue.all_measurements()
    for name in names or []:
        if not any(name.lower() in one.name.lower() for one in every):
            raise UsageError(f"nothing is named like '{name}'; --list names what there is")
    return [
        one for one in every if not names or any(name.lower() in one.name.lower() for name in names)
    ]


def show_list() -> None:
    for one in catalogue.all_measurements():
        missing = one.missing()
        print(f"{one.name:32} {one.title}" + (f" (not here: {missing})" if missing else ""))


def with_ceilings(measurements: list[Measurement], only: list[str] | None) -> list[Measurement]:
    """What --check measures: what was named, or else all that can be checked."""
    checked = [one for one in measurements if one.checked()]
    if not checked:
        raise UsageError("--check: nothing of what --only names has a ceiling")
    return measurements if only else checked


def measure(given: argparse.Namespace) -> int:
    """Runs the rounds; 1 where a ceiling does not hold, or what was tried could not be measured."""
    every_round = given.rounds or (1 if given.quick else 5)
    named = chosen(given.only)
    if given.check:
        named = with_ceilings(named, given.only)
    plan = rounds.Plan(named, every_round, given.quick, given.match, given.work)

    def keep(samples: dict[str, rounds.Samples]) -> None:
        if given.json:
            results.write(results.collect(plan, samples), given.json)

    samples = rounds.run(plan, keep)
    found = results.collect(plan, samples)
    if given.figures:
        figures.draw(found, given.figures)
    print(table.as_text(found))
    if given.check:
        verdicts = ceilings.verdicts(plan, samples)
        print(ceilings.as_text(verdicts))
        if ceilings.faults(verdicts):
            return 1
    tried = [one for one in plan.measurements if not one.missing()]
    return 1 if any(samples[one.name].failure for one in tried) else 0


def main() -> int:
    given = arguments()
    try:
        if given.list:
            show_list()
            return 0
        if given.report:
            for file in page.write(given.report):
                print(f"written: {file}", file=sys.stderr)
            return 0
        if given.profile:
            name, tool = given.profile
            if tool not in profiler.TOOLS:
                raise UsageError(f"--profile NAME TOOL: '{tool}' is neither perf nor callgrind")
            print(profiler.profile(chosen([name])[0], tool, given.match[0], given.work))
            return 0
        return measure(given)
    except (UsageError, page.PageError, profiler.ProfileError, ValueError, OSError) as error:
        print(f"tests/bench/run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
