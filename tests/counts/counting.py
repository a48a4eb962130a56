# SPDX-License-Identifier: Apache-2.0
"""What a call of a C++ host does, counted by path (call_counts.cpp), with three tools.

    ./tests/run --only build && .venv/bin/python tests/counts/counting.py

prints the rows of the table in test_call_counts.py anew.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_BUILD = Path(__file__).resolve().parents[2] / "build" / "release"
_CALLS = 8  # in a round; of each count the least of the rounds is taken
# The allocator takes its memory from the kernel at once, and so makes no system call in a round.
_ALLOCATOR = "glibc.malloc.top_pad=268435456:glibc.malloc.mmap_threshold=1073741824"

# Path, what was counted, how many of it in a round, all by the thread that calls.
Count = tuple[str, str, int]


class Counts(NamedTuple):
    """What one call does, as a mean over a round."""

    instructions: float
    allocations: float
    allocated_bytes: float
    locks: float
    system_calls: float  # without waits and wake-ups
    waits: float  # for other threads, or wake-ups of them: system calls futex
    copied_bytes: float  # by copies of 1 KiB and more


def counts_by_path() -> dict[str, Counts]:
    """Takes half a minute, most of which torch spends starting under callgrind."""
    with (
        tempfile.TemporaryDirectory(prefix="modcache-counts-") as folder,
        ThreadPoolExecutor() as pool,
    ):
        ways = (_counted_by_the_preload, _instructions, _system_calls)
        found = pool.map(lambda way: list(way(Path(folder))), ways)
        counts = [count for of_one_way in found for count in of_one_way]
    least: dict[tuple[str, str], int] = {}
    for path, what, count in counts:
        least[path, what] = min(count, least.get((path, what), count))
    paths = dict.fromkeys(path for path, _ in least)
    return {
        path: Counts(**{what: least[path, what] / _CALLS for what in Counts._fields})
        for path in paths
    }


def instructions_by_path(build: Path) -> dict[str, float]:
    """Returns the instructions of one call with the library of a build folder."""
    library = {"MODCACHE_LIBRARY": str(build / "libmodcache.so")}
    found: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="modcache-counts-") as folder:
        for path, _, count in _instructions(Path(folder), build, **library):
            found.setdefault(path, []).append(count)
    return {path: min(counts) / _CALLS for path, counts in found.items()}


def _run(*tool: str | Path, build: Path = _BUILD, **environment: str) -> str:
    """Runs call_counts under a tool, with no settings of the cache but the library."""
    program = build / "bin" / "call_counts"
    assert program.exists(), "first: ./tests/run --only build"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MODCACHE_")}
    library = os.environ.get("MODCACHE_LIBRARY", str(build / "libmodcache.so"))
    done = subprocess.run(
        [*map(str, tool), str(program), str(_CALLS)],
        env=kept
        | {"MODCACHE_LIBRARY": library, "GLIBC_TUNABLES": _ALLOCATOR, "OMP_NUM_THREADS": "1"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{tool}:\n{done.stdout}{done.stderr}"
    return done.stdout


def _instructions(folder: Path, build: Path = _BUILD, **environment: str) -> Iterator[Count]:
    _run(
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        "--separate-threads=yes",
        f"--callgrind-out-file={folder / 'callgrind'}",
        build=build,
        **environment,
    )
    for dump in folder.glob("callgrind.*-01"):  # thread 1 is the one that calls
        text = dump.read_text(encoding="utf-8")
        path = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
        assert path is not None, text[:1000]
        assert total is not None, text[:1000]
        yield path[1], "instructions", int(total[1])


def _system_calls(folder: Path) -> Iterator[Count]:
    trace = folder / "trace"
    _run("strace", "-f", "-qq", "-o", trace)
    yield from system_calls_in(trace.read_text(encoding="utf-8").splitlines())


def system_calls_in(trace: Iterable[str]) -> Iterator[Count]:
    """The calls between the marks of each round, of the thread that makes the marks."""
    thread, calls = "", list[str]()
    for line in trace:
        of_thread, call = line.split(maxsplit=1)
        mark = re.match(r'write\(-1, "(begin|end) (\w+)"', call)
        if mark is None:
            # A call that another thread came between ends on a line of its own.
            if of_thread == thread and not call.startswith("<... "):
                calls.append(call)
        elif mark[1] == "begin":
            thread, calls = of_thread, []
        else:
            waits = sum(call.startswith("futex(") for call in calls)
            yield mark[2], "waits", waits
            yield mark[2], "system_calls", len(calls) - waits
            thread = ""


def _counted_by_the_preload(_: Path) -> Iterator[Count]:
    for line in _run(LD_PRELOAD=str(_BUILD / "bin" / "libcall_counters.so")).splitlines():
        counted = json.loads(line)
        path = counted.pop("path")
        yield from ((path, what, count) for what, count in counted.items())


def as_row(counts: Counts) -> str:
    """What stands in a row of the table: instructions in hundreds, all else in whole numbers."""
    instructions = 100 * math.ceil(counts.instructions / 100)
    return ", ".join(f"{math.ceil(count):_}" for count in (instructions, *counts[1:]))


def main() -> None:
    for path, counts in counts_by_path().items():
        print(f'    "{path}": Counts({as_row(counts)}),')


if __name__ == "__main__":
    main()
