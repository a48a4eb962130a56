# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of two checkouts. tests/bench/compare starts it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Measures two checkouts in alternating rounds and prints each row's median time in both, the
spread of its rounds (largest less smallest, over the median), and the ratio of the medians.

A row counts only if its spread is below the limit of --spread in both checkouts. It is worse if its
median in NEW is then above that in BASE by more than --worse. Rows that do not count are measured
again, up to --attempts times.

--counts compares instructions of tests/counts instead, which are exact: a path is worse if it takes
over 1 % more. It needs valgrind.

Both checkouts need a build/release, with bench_operators and call_bench (CMake option
MODCACHE_BUILD_BENCH=ON) for the rows of C++ and TorchScript. The measurements are those of this
checkout's tests/bench/suite, with the modcache of each of the two.

Exit status: 0 no row is worse, 1 some are or could not be measured, 2 misuse.
"""

# Short enough for many rounds, and without other libraries.
NAMES = (
    "memory hit, 2 KiB",
    "memory hit, 300 parameters",
    "memory hit, C++ and scripted",
    "disk hit, 2 KiB",
    "miss, 2 KiB",
    "fill, 151 KB",
    "batch, 2 KiB",
    "mode off, Python",
    "mode off, C++ and scripted",
)
# Subjects that run no code of modcache.
_OF_MODCACHE = ("modcache", "scripted, ", "C++, ")
MAX_MORE_INSTRUCTIONS = 0.01


class UsageError(Exception):
    """What was asked for cannot be done."""


@dataclass(frozen=True)
class Checkout:
    """A source tree with a build."""

    root: Path
    build: Path

    @property
    def library(self) -> Path:
        return self.build / "libmodcache.so"

    @property
    def benches(self) -> Path:
        return self.build / "tests" / "bench"

    def has_benches(self) -> bool:
        names = ("libbench_operators.so", "call_bench")
        return all((self.benches / name).exists() for name in names)


def checkout_at(given: str, build: str) -> Checkout:
    root = Path(given).resolve()
    found = Checkout(root, root / build)
    if not (root / "python_shim" / "modcache").is_dir():
        raise UsageError(f"'{given}' is not a checkout: it has no python_shim/modcache")
    if not found.library.exists():
        raise UsageError(f"'{given}' is not built: there is no {found.library}")
    return found


class Server:
    """A process that measures one checkout (served_rounds.py)."""

    def __init__(self, checkout: Checkout, benches: Path, folder: Path) -> None:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("MODCACHE_")}
        path = [str(checkout.root / "python_shim"), os.environ.get("PYTHONPATH", "")]
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "suite.served_rounds"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept
            | {
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "MODCACHE_LIBRARY": str(checkout.library),
                "MODCACHE_BENCH_BUILD": str(benches),
            },
        )

    def ask(self, step: str, name: str, number: int, quick: bool) -> dict[str, float]:
        """Returns the figures of a step.

        Raises:
            StepError: it failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folder = self._folder / name.replace(" ", "-").replace(",", "")
        request = {"step": step, "name": name, "round": number, "quick": quick}
        print(json.dumps({**request, "folder": str(folder)}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise StepError(f"{name}: the measuring process ended")
        answer = json.loads(line)
        if "failure" in answer:
            raise StepError(answer["failure"])
        figures: dict[str, float] = answer["figures"]
        return figures

    def drop(self, name: str) -> None:
        shutil.rmtree(self._folder / name.replace(" ", "-").replace(",", ""), ignore_errors=True)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class StepError(Exception):
    """A step of a measurement failed; the text says why."""


@dataclass
class Row:
    """The figures of one subject in both checkouts, in microseconds, by round."""

    name: str
    base: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        return statistics.median(self.new) / statistics.median(self.base)

    def counts(self, max_spread: float) -> bool:
        return max(spread(self.base), spread(self.new)) < max_spread

    def verdict(self, max_spread: float, max_worse: float) -> str:
        if not self.counts(max_spread):
            return "does not count"
        if self.ratio() > 1 + max_worse:
            return "worse"
        return "better" if self.ratio() < 1 - max_worse else "same"


def spread(figures: Sequence[float]) -> float:
    """Largest less smallest, over the median."""
    return (max(figures) - min(figures)) / statistics.median(figures)


@dataclass(frozen=True)
class Plan:
    names: Sequence[str]
    rounds: int
    repeats: int
    attempts: int
    quick: bool
    max_spread: float
    max_worse: float


def measured(plan: Plan, base: Server, new: Server) -> tuple[list[Row], dict[str, str]]:
    """Returns the rows, and why some measurements have none."""
    rows: dict[str, Row] = {}
    failures: dict[str, str] = {}
    started = time.monotonic()
    for position, name in enumerate(plan.names, 1):
        for attempt in range(1, plan.attempts + 1):
            spent = time.monotonic() - started
            progress = f"[{position}/{len(plan.names)}, {spent:.0f} s] {name}"
            print(progress + f", attempt {attempt}" * (attempt > 1), file=sys.stderr, flush=True)
            try:
                found = rounds_of(plan, name, base, new)
            except StepError as failure:
                failures[name] = str(failure).removeprefix(f"{name}: ")
                break
            finally:
                base.drop(name)
                new.drop(name)
            for row in found:
                before = rows.get(row.name)
                if before is None or not before.counts(plan.max_spread):
                    rows[row.name] = row
            if all(rows[row.name].counts(plan.max_spread) for row in found):
                break
    return list(rows.values()), failures


def rounds_of(plan: Plan, name: str, base: Server, new: Server) -> list[Row]:
    """Measures one measurement in both checkouts, which take turns to be the first."""
    for server in (base, new):
        server.ask("missing", name, 0, plan.quick)
        server.ask("prepare", name, 0, plan.quick)
    rows: dict[str, Row] = {}
    number = 0
    for turn in range(plan.rounds):
        best: dict[str, dict[str, float]] = {"base": {}, "new": {}}
        for repeat in range(plan.repeats):
            number += 1
            order = [("base", base), ("new", new)]
            for side, server in order if (turn + repeat) % 2 == 0 else reversed(order):
                for subject, us in server.ask("measure", name, number, plan.quick).items():
                    # Other work on the machine only adds time.
                    best[side][subject] = min(us, best[side].get(subject, us))
        for subject in best["base"]:
            if subject.startswith(_OF_MODCACHE) and subject in best["new"]:
                row = rows.setdefault(subject, Row(f"{name}: {subject}"))
                row.base.append(best["base"][subject])
                row.new.append(best["new"][subject])
    return list(rows.values())


def as_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    every = [header, *lines]
    widths = [max(len(line[i]) for line in every) for i in range(len(header))]
    last = len(header) - 1
    texts = [
        "  ".join(
            cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i])
            for i, cell in enumerate(line)
        ).rstrip()
        for line in every
    ]
    return "\n".join(texts)


def table_of(rows: Sequence[Row], plan: Plan) -> str:
    header = ("row", "base us", "spread", "new us", "spread", "ratio", "verdict")
    lines = [
        (
            row.name,
            f"{statistics.median(row.base):.2f}",
            f"{100 * spread(row.base):.1f} %",
            f"{statistics.median(row.new):.2f}",
            f"{100 * spread(row.new):.1f} %",
            f"{row.ratio():.3f}",
            row.verdict(plan.max_spread, plan.max_worse),
        )
        for row in rows
    ]
    return as_table(header, lines)


def compare_times(given: argparse.Namespace, base: Checkout, new: Checkout) -> int:
    from suite import catalogue

    every = [one.name for one in catalogue.all_measurements()]
    names = list(NAMES)
    if given.only:
        names = [n for n in every if any(part.lower() in n.lower() for part in given.only)]
        if not names:
            raise UsageError(f"nothing is named like {given.only}; valid are parts of: {every}")
    plan = Plan(
        names, given.rounds, given.repeats, given.attempts, given.quick,
        given.spread / 100, given.worse / 100,
    )  # fmt: skip
    work = Path(tempfile.mkdtemp(prefix="modcache-compare-", dir=given.work))
    servers: list[Server] = []
    try:
        for name, checkout, other in (("base", base, new), ("new", new, base)):
            benches = checkout if checkout.has_benches() else other  # one build is enough
            servers.append(Server(checkout, benches.benches, work / name))
        rows, failures = measured(plan, *servers)
    finally:
        for server in servers:
            server.close()
        shutil.rmtree(work, ignore_errors=True)
    if rows:
        print(table_of(rows, plan))
    for name, reason in failures.items():
        print(f"not measured: {name}: {reason}")
    verdicts = [row.verdict(plan.max_spread, plan.max_worse) for row in rows]
    print(
        f"{len(rows)} rows: {verdicts.count('same')} same, {verdicts.count('better')} better, "
        f"{verdicts.count('worse')} worse, {verdicts.count('does not count')} do not count"
    )
    write(given.json, {
        "base": str(base.root), "new": str(new.root), "rounds": plan.rounds,
        "rows": [
            {
                "name": row.name, "base_us": row.base, "new_us": row.new, "ratio": row.ratio(),
                "verdict": row.verdict(plan.max_spread, plan.max_worse),
            }
            for row in rows
        ],
        "not_measured": failures,
    })  # fmt: skip
    return 1 if failures or "worse" in verdicts else 0


def compare_counts(given: argparse.Namespace, base: Checkout, new: Checkout) -> int:
    import counting

    for checkout in (base, new):
        if not (checkout.build / "bin" / "call_counts").exists():
            raise UsageError(f"there is no {checkout.build / 'bin' / 'call_counts'}")
    if shutil.which("valgrind") is None:
        raise UsageError("--counts needs valgrind")
    try:
        of_base = counting.instructions_by_path(base.build)
        of_new = counting.instructions_by_path(new.build)
    except AssertionError as failure:  # its text is all that the program wrote
        reason = re.search(r"what\(\): (.*)", str(failure))
        raise UsageError(f"call_counts failed: {reason[1] if reason else failure}") from None
    both = [path for path in of_base if path in of_new]
    more = {path: of_new[path] / of_base[path] - 1 for path in both}
    worse = [path for path in both if more[path] > MAX_MORE_INSTRUCTIONS]
    lines = [
        (path, f"{of_base[path]:,.0f}", f"{of_new[path]:,.0f}", f"{100 * more[path]:+.2f} %",
         "worse" if path in worse else "")
        for path in both
    ]  # fmt: skip
    print(as_table(("path", "base", "new", "change", ""), lines))
    for path in sorted(of_base.keys() ^ of_new.keys()):
        print(f"only in {'base' if path in of_base else 'new'}: {path}")
    write(given.json, {
        "base": str(base.root), "new": str(new.root),
        "instructions": {path: [of_base[path], of_new[path]] for path in both},
    })  # fmt: skip
    return 1 if worse else 0


def write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/bench/compare",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="the checkout to compare with")
    add("new", metavar="NEW", help="the checkout that should be no slower")
    add("--rounds", type=_at_least_one, default=5, help="rounds of each row (%(default)s)")
    add("--repeats", type=_at_least_one, default=2,
        help="runs in a round, of which the fastest counts (%(default)s)")  # fmt: skip
    add("--attempts", type=_at_least_one, default=3,
        help="how often rows are measured until they count (%(default)s)")  # fmt: skip
    add("--only", nargs="+", metavar="NAME", help="measurements whose names contain one of these")
    add("--quick", action="store_true", help="an eighth of the calls")
    add("--spread", type=float, default=5, metavar="PERCENT",
        help="a row with a spread of this or more does not count (%(default)s)")  # fmt: skip
    add("--worse", type=float, default=5, metavar="PERCENT",
        help="by how much a median may be worse (%(default)s)")  # fmt: skip
    add("--counts", action="store_true", help="compare instruction counts instead of times")
    add("--json", type=Path, metavar="FILE", help="where the figures go")
    add("--build", default="build/release", metavar="FOLDER",
        help="the build in each checkout (%(default)s)")  # fmt: skip
    add(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="where the caches are made; the temporary folder",
    )
    return parser.parse_args()


def main() -> int:
    given = arguments()
    try:
        base, new = (checkout_at(path, given.build) for path in (given.base, given.new))
        if given.counts:
            return compare_counts(given, base, new)
        return compare_times(given, base, new)
    except (UsageError, OSError) as error:
        print(f"tests/bench/compare: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
