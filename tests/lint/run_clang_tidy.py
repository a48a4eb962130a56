# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the sources of a build, several joined into one at a time.

    python tests/lint/run_clang_tidy.py BUILD FOLDER...

Reading torch's headers takes most of the time of a source, and sources that a unity build compiles
at once can be read at once too. Their texts are joined, not included: some checks look at the main
file alone (misc-unused-using-decls, -Wunused-const-variable). What is found is printed with the
place that it has in its source. One finding gets lost: where two joined sources have a `using` of
one name, it counts as used in both if one uses it.
"""

from __future__ import annotations

import bisect
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from compiled_units import Unit, threads, units_of

TIDY = Path(sys.prefix) / "bin" / "clang-tidy"


class Joined(NamedTuple):
    """A file that holds the texts of sources, one after another."""

    path: Path
    sources: tuple[Path, ...]
    starts: tuple[int, ...]  # the number of each source's first line

    def with_places_of_sources(self, said: str) -> str:
        """The same text with places of the joined file replaced by those of its sources."""

        def place(match: re.Match[str]) -> str:
            line = int(match[1])
            index = bisect.bisect_right(self.starts, line) - 1
            return f"{self.sources[index]}:{line - self.starts[index] + 1}:"

        return re.sub(rf"{re.escape(str(self.path))}:(\d+):", place, said)


def join(sources: tuple[Path, ...], path: Path) -> Joined:
    lines: list[str] = []
    starts = []
    for source in sources:
        starts.append(len(lines) + 1)
        lines += source.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Joined(path, sources, tuple(starts))


def complaints(unit: Unit, joined: Joined) -> str:
    """What clang-tidy says of the unit; "": nothing."""
    first_option = next(i for i, word in enumerate(unit.command) if word.startswith("-"))
    beside = [f"-iquote{folder}" for folder in dict.fromkeys(s.parent for s in unit.sources)]
    # The command is GCC's, which has warnings that clang does not know.
    for_clang = ["-Wthread-safety", "-Wno-unknown-warning-option"]
    compiler = [*unit.command[first_option:], *beside, *for_clang]
    command = [TIDY, "--quiet", joined.path, "--", *compiler]
    done = subprocess.run(
        [*map(str, command)], cwd=unit.folder, capture_output=True, text=True, check=False
    )
    # Standard error has what it could not do, and counts of warnings in headers of others.
    said = done.stdout if done.stdout.strip() else done.stderr
    return "" if done.returncode == 0 else joined.with_places_of_sources(said)


def main(arguments: list[str]) -> int:
    build, *folders = [Path(argument).resolve() for argument in arguments]
    units = units_of(build, folders)
    target = build / "joined"
    target.mkdir(exist_ok=True)

    def said_of(numbered: tuple[int, Unit]) -> str:
        number, unit = numbered
        return complaints(unit, join(unit.sources, target / f"joined_{number}.cpp"))

    with ThreadPoolExecutor(threads()) as pool:
        found = 0
        for said in pool.map(said_of, enumerate(units)):
            if said:
                found += 1
                print(said, flush=True)
    sources = sum(len(unit.sources) for unit in units)
    print(f"clang-tidy over {sources} sources in {len(units)} units; {found} with complaints")
    return 1 if found or not units else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
