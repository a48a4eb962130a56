# SPDX-License-Identifier: Apache-2.0
"""stats: what the processes of a directory counted, and setting it to zero."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from program import MISUSE, SUCCESS, FillDirectory, Outcome, bytes_below

Program = Callable[..., Outcome]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def counted(directory: Path, writer: FillDirectory) -> Path:
    """Two scopes, and events that have none; the process that counted is there still."""
    writer.put(scope="encoder@1")
    writer.keep_manifest("encoder@1", **{"class": "models.Encoder"})
    first = {"hits_memory": 10, "hits_disk": 20, "misses": 3, "saved_us": 7_384_000_000}
    writer.do("count", scope="encoder@1", days_ago=1, **first, bypassed_grad=2, run_us=9000)
    writer.do("count", scope="encoder@1", hits_disk=5, misses=1, saved_us=16_000_000)
    writer.do("count", scope="other", misses=1, bypassed_type=1)
    writer.do("count", scope="", errors=4)
    writer.flush()
    return directory


def test_stats_begins_with_hit_rate_and_time_saved(modcache: Program, counted: Path) -> None:
    lines = modcache("stats", counted).lines
    assert lines[0].split(maxsplit=2) == ["hit", "rate", "87.5 %"]
    assert lines[1].split(maxsplit=2) == ["time", "saved", "2 h 3 min"]
    text = "\n".join(lines)
    assert "a result requires grad" in text
    assert "the scope was found wrong" not in text, "what did not happen is no line"


def test_machines_get_all_that_was_counted(modcache: Program, counted: Path) -> None:
    stats = modcache("stats", counted, "--json").json()["counted"]
    assert stats["hit_rate"] == 0.875
    assert (stats["hits"], stats["misses"]) == (35, 5)
    assert (stats["hits_memory"], stats["hits_disk"], stats["hits_remote"]) == (10, 25, 0)
    assert stats["saved_us"] == 7_400_000_000
    assert (stats["bypassed"], stats["bypassed_grad"], stats["bypassed_type"]) == (3, 2, 1)
    assert (stats["errors"], stats["run_us"], stats["processes"]) == (4, 9000, 1)
    assert datetime.fromisoformat(stats["since_at"]).year >= 2024


def test_every_cause_of_a_bypass_has_a_member(modcache: Program, counted: Path) -> None:
    source = (ROOT / "csrc" / "cache" / "stats.cpp").read_text(encoding="utf-8")
    causes = set(re.findall(r'"(bypassed_\w+)"', source))
    stats = modcache("stats", counted, "--json").json()["counted"]
    # Calls under mode `off` count in their process alone.
    assert {name for name in stats if name.startswith("bypassed_")} == causes - {"bypassed_off"}


def test_by_scope_and_by_day(modcache: Program, counted: Path) -> None:
    stats = modcache("stats", counted, "--by-scope", "--by-day", "--json").json()
    assert [(row["scope"], row["class"], row["hits"]) for row in stats["by_scope"]] == [
        ("encoder@1", "models.Encoder", 35),
        (None, None, 0),
        ("other", None, 0),
    ]
    assert [row["hit_rate"] for row in stats["by_scope"]] == [pytest.approx(35 / 39), None, 0]
    today = datetime.now(tz=UTC).date()
    days = [(row["day"], row["misses"]) for row in stats["by_day"]]
    yesterdays = [today - timedelta(days=1), today - timedelta(days=2)]  # at midnight
    assert days[0] in [(str(day), 3) for day in yesterdays]
    assert days[1][1] == 2
    shown = modcache("stats", counted, "--by-scope", "--by-day").data
    assert "SCOPE" in shown
    assert "DAY" in shown


def test_setting_to_zero(modcache: Program, counted: Path, writer: FillDirectory) -> None:
    outcome = modcache("stats", counted, "-z", "--json")
    assert outcome.status == SUCCESS
    stats = outcome.json()
    assert (stats["counted"]["hits"], stats["counted"]["hit_rate"]) == (0, None)
    assert stats["entries"] == 1, "entries stay"
    writer.do("count", scope="encoder@1", misses=1)
    assert modcache("stats", counted, "--json").json()["counted"]["misses"] == 1
    writer.leave()
    assert modcache("stats", counted, "--zero").status == SUCCESS
    assert modcache("stats", counted, "--json").json()["counted"]["misses"] == 0


def test_a_directory_without_counters_says_so(modcache: Program, filled: Path) -> None:
    outcome = modcache("stats", filled)
    assert outcome.lines[0].split(maxsplit=2) == ["hit", "rate", "none counted yet"]
    stats = modcache("stats", filled, "--json").json()["counted"]
    assert (stats["hit_rate"], stats["hits"], stats["since_at"]) == (None, 0, None)


def test_a_pack_counts_nothing(modcache: Program, filled: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    assert modcache("pack", filled, pack).status == SUCCESS
    assert "a pack counts nothing" in modcache("stats", pack).lines[0]
    assert modcache("stats", pack, "--json").json()["counted"] is None
    assert modcache("stats", pack, "--by-scope", "--by-day").status == SUCCESS
    outcome = modcache("stats", pack, "-z")
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "is a pack, which counts nothing" in outcome.messages


def test_only_who_may_write_sets_to_zero(
    modcache: Program, counted: Path, writer: FillDirectory
) -> None:
    writer.leave()
    before = bytes_below(counted)
    (counted / "lock").rename(counted / "lock.away")
    (counted / "lock").mkdir()  # the tests may run as root, whom no permission stops
    outcome = modcache("stats", counted, "-z")
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "cannot be set to zero" in outcome.messages
    (counted / "lock").rmdir()
    (counted / "lock.away").rename(counted / "lock")
    assert bytes_below(counted) == before


@pytest.mark.parametrize("options", [[], ["--by-scope"], ["--by-day", "--json"]])
def test_looking_at_counters_changes_no_byte(
    modcache: Program, counted: Path, writer: FillDirectory, options: list[str]
) -> None:
    writer.leave()
    before = bytes_below(counted)
    assert modcache("stats", counted, *options).status == SUCCESS
    assert bytes_below(counted) == before


def test_damaged_counters_are_as_if_missing(
    modcache: Program, counted: Path, writer: FillDirectory
) -> None:
    writer.leave()
    for path in (counted / "counters").iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)
    outcome = modcache("stats", counted, "--json", "--by-scope")
    assert outcome.status == SUCCESS
    assert outcome.json()["counted"]["hits"] == 0


def test_scopes_that_terminals_would_obey_are_escaped(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    writer.put(scope="a")
    writer.do("count", scope="\x1b]0;title\x07\u202e", misses=1)
    writer.flush()
    shown = modcache("stats", directory, "--by-scope").data
    assert "\\x1b]0;title" in shown
    assert not set("\x1b\x07\u202e") & set(shown)
