# SPDX-License-Identifier: Apache-2.0
"""The command line; tests/bench/run starts it with the right environment."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from suite import catalogue, results, rounds, table
from suite.measurement import Measurement


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/run", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--match", choices=rounds.MATCHES, nargs="+", default=rounds.MATCHES)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", type=Path, metavar="FOLDER")
    return parser.parse_args()


def chosen(names: list[str] | None) -> list[Measurement]:
    return [
        one
        for one in catalogue.all_measurements()
        if not names or any(name.lower() in one.name.lower() for name in names)
    ]


def main() -> int:
    given = arguments()
    plan = rounds.Plan(
        chosen(given.only),
        given.rounds or (1 if given.quick else 5),
        given.quick,
        given.match,
        given.work,
    )

    def keep(samples: dict[str, rounds.Samples]) -> None:
        if given.json:
            results.write(results.collect(plan, samples), given.json)

    found = results.collect(plan, rounds.run(plan, keep))
    print(table.as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
