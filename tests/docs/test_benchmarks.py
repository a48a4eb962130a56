# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite runs, and docs/benchmarks.md says what the JSON beside it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pages
import pytest

BENCH = pages.ROOT / "tests" / "bench"
PAGE = pages.ROOT / "docs" / "benchmarks.md"
sys.path.insert(0, str(BENCH))

from suite import catalogue, measurement, page, results, table  # noqa: E402


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(BENCH), *(path for path in sys.path if path)]
    return subprocess.run(
        [sys.executable, "-m", "suite", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The figures and the output of a rough look at one path."""
    folder = tmp_path_factory.mktemp("quick")
    file, figures = folder / "found.json", folder / "figures"
    given = ("--quick", "--only", "miss, 2 KiB", "--json", str(file), "--figures", str(figures))
    done = suite(*given, "--work", str(folder))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in figures.iterdir()) == ["bounds.svg", "miss.svg"]
    assert not list(folder.glob("modcache-bench-*")), "what it made is taken away again"
    return json.loads(file.read_text()), done.stdout


def test_a_rough_look_measures_in_both_settings(quick: tuple[Any, str]) -> None:
    found, _ = quick
    one = found["measurements"]["miss, 2 KiB"]
    assert found["format"] == results.FORMAT
    assert (found["rounds"], found["quick"], one["failure"]) == (1, True, "")
    for match in ("none", "input"):
        assert one["rounds"][match][0]["modcache, scripted"] > 0
        spread = one["medians"][match]["the module"]
        assert spread["least"] <= spread["median"] <= spread["most"]


def test_a_rival_that_is_not_here_is_named(quick: tuple[Any, str]) -> None:
    found, output = quick
    row = next(row for row in found["table"] if row["over"] == "LMDB, put")
    there = "LMDB, put" in found["measurements"]["miss, 2 KiB"]["rounds"]["none"][0]
    verdict = row["none"]["verdict"]
    assert (
        verdict in ("ok", "falls short") if there else verdict == "not measured: no LMDB, put here"
    )
    assert row["path"] in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "nothing"), "--list names what there is"),
        (("--report", "nowhere.json"), "No such file"),
        (("--profile", "off", "gprof"), "neither perf nor callgrind"),
    ],
    ids=("only", "report", "profile"),
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], says: str) -> None:
    done = suite(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_is_what_the_figures_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = results.read(PAGE.with_suffix(".json"))
    assert page.filled(text, found, PAGE.stem) == text, (
        "./tests/bench/run --report docs/benchmarks.json"
    )


def test_the_page_has_every_path_of_the_suite() -> None:
    found = results.read(PAGE.with_suffix(".json"))
    wanted = [row.path for one in catalogue.all_measurements() for row in one.comparisons()]
    assert [row["path"] for row in found["table"]] == wanted


def test_a_bound_is_kept_or_not() -> None:
    ratio = measurement.Comparison("a path", "a", 1.5, "b", less="c")
    assert ratio.value({"a": 4.0, "b": 2.0, "c": 1.0}, "none") == (1.5, 1.0)
    assert ratio.value({"a": 4.0, "b": 2.0}, "none") is None
    _, share = ratio.value({"a": 4.1, "b": 2.0, "c": 1.0}, "input") or (0, 9)
    assert share <= 1, "the sample of the input may cost what it may"
    faster = measurement.Comparison("a path", "a", 2000, "b", at_least=True)
    assert faster.value({"a": 1000.0, "b": 1.0}, "none") == (1000.0, 2.0)
    more = measurement.Comparison("a path", "a", 50, less="b", unit="ns")
    assert more.value({"a": 0.625, "b": 0.5}, "none") == (125.0, 2.5)


def test_both_columns_have_one_word_where_they_agree() -> None:
    ok, short = {"verdict": "ok"}, {"verdict": "falls short"}
    assert table.verdict(ok, ok) == "ok"
    assert table.verdict(ok, short) == "ok; default falls short"
    assert table.verdict(ok, {"verdict": "the same"}) == "ok"


def test_a_page_without_a_place_is_said(tmp_path: Path) -> None:
    found = results.read(PAGE.with_suffix(".json"))
    with pytest.raises(page.PageError, match="begin: machine"):
        page.filled("nothing", found, PAGE.stem)
