# SPDX-License-Identifier: Apache-2.0
"""stats, ls and show: what they say of a directory, and that they leave it as it is."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from program import FINDINGS, MISUSE, SUCCESS, FillDirectory, Outcome, binary, bytes_below

Program = Callable[..., Outcome]
VALUE = 3 * 256 * 4


def test_stats_says_what_there_is(modcache: Program, filled: Path) -> None:
    stats = modcache("stats", filled, "--json").json()
    assert stats["directory"] == str(filled)
    assert (stats["entries"], stats["scopes"], stats["contexts"]) == (7, 3, 3)
    assert stats["value_bytes"] == 5 * VALUE + 16 + 16
    assert stats["run_us"] == 6 * 1500 + 90_000_000
    assert stats["disk_bytes"] == sum(len(data) for data in bytes_below(filled).values())
    assert stats["segments"] == 1
    assert stats["segment_bytes"] > stats["value_bytes"]
    assert stats["mode"] == "on"
    assert datetime.fromisoformat(stats["first_stored_at"]).year >= 2024


def test_stats_for_people_has_units(modcache: Program, filled: Path) -> None:
    outcome = modcache("stats", filled)
    assert outcome.status == SUCCESS
    lines = [line for line in outcome.lines if line]
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines)
    assert facts["entries"] == "7"
    assert facts["size of the values"] == "15.4 kB"
    assert facts["time their runs took"] == "1 min 30 s"
    starts = {re.search(r"\S  +(?=\S)", line).end() for line in lines}  # type: ignore[union-attr]
    assert len(starts) == 1, "values stand below each other"


def test_space_of_what_was_replaced_is_dead(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    for _ in range(3):
        writer.put(key="one", shape=[1000])
        writer.flush()
    stats = modcache("stats", directory, "--json").json()
    assert stats["entries"] == 1
    assert stats["dead_bytes"] >= 2 * 4000


def test_ls_lists_every_entry(modcache: Program, filled: Path) -> None:
    entries = modcache("ls", filled, "--json").json()["entries"]
    assert [(entry["scope"], entry["key"]) for entry in entries] == [
        *(("encoder@1", f"key-{i}") for i in range(5)),
        ("encoder@2", "key-0"),
        ("other", "line\n\x1b[31mé"),
    ]
    assert entries[0]["value_bytes"] == VALUE
    row = entries[5]
    assert (row["form"], row["method"], row["arguments"]) == ("row", "encode", "2:ab,")
    assert entries[6]["namespace"] == "mine"
    assert all(entry["key_hex"] is None for entry in entries)


def test_ls_for_people_escapes_what_moves_the_cursor(modcache: Program, filled: Path) -> None:
    lines = modcache("ls", filled).lines
    assert len(lines) == 1 + 7
    assert lines[0].split()[:2] == ["KEY", "SCOPE"]
    assert lines[7].startswith("line\\n\\x1b[31mé  other")


def test_ls_narrows(modcache: Program, filled: Path) -> None:
    def keys(*options: str) -> list[str]:
        entries = modcache("ls", filled, "--json", *options).json()["entries"]
        return [entry["key"] for entry in entries]

    assert keys("--scope", "encoder@1", "--limit", "2") == ["key-0", "key-1"]
    assert keys("--prefix", "key-0") == ["key-0", "key-0"]
    assert keys("--scope", "oth") == ["line\n\x1b[31mé"]
    assert keys("--prefix", "no such") == []
    assert keys("--limit", "0") == []
    outcome = modcache("ls", filled, "--prefix", "no such")
    assert (outcome.status, outcome.data) == (SUCCESS, "no entries\n")


def test_a_scope_must_be_the_only_one_that_begins_so(modcache: Program, filled: Path) -> None:
    outcome = modcache("ls", filled, "--scope", "encoder")
    assert (outcome.status, outcome.data) == (FINDINGS, "")
    assert "2 scopes begin with 'encoder'" in outcome.messages
    assert "encoder@1, encoder@2" in outcome.messages
    outcome = modcache("ls", filled, "--scope", "none")
    assert outcome.status == FINDINGS
    assert "there is no scope 'none'" in outcome.messages


def test_ls_long_says_what_values_are(modcache: Program, filled: Path) -> None:
    entry = modcache("ls", filled, "--long", "--json").json()["entries"][0]
    assert entry["value"] == "float32[3, 256]"
    assert entry["signature"] == "(float32[1,4])"
    assert entry["damage"] is None


def test_ls_long_finds_damage(modcache: Program, filled: Path) -> None:
    entry = modcache("ls", filled, "--json").json()["entries"][0]
    segment = filled / "segments" / f"{entry['segment']}.seg"
    data = bytearray(segment.read_bytes())
    data[entry["offset"] + 90] ^= 1  # in the head of the record
    segment.write_bytes(data)
    outcome = modcache("ls", filled, "--long", "--json")
    assert outcome.status == FINDINGS
    entries = outcome.json()["entries"]
    assert [bool(entry["damage"]) for entry in entries] == [True, *[False] * 6]
    assert modcache("ls", filled).status == SUCCESS, "only --long looks there"


def test_ls_of_scopes(modcache: Program, directory: Path, writer: FillDirectory) -> None:
    writer.put(scope="encoder@1", key="a", count=2)
    writer.keep_manifest("encoder@1", **{"class": "models.Encoder", "method": "forward"})
    writer.keep_manifest("evicted", **{"class": "models.Other"})
    writer.flush()
    scopes = modcache("ls", directory, "--scopes", "--json").json()["scopes"]
    assert [scope["scope"] for scope in scopes] == ["encoder@1", "evicted"]
    assert scopes[0]["class"] == "models.Encoder"
    assert scopes[0]["methods"] == "forward"
    assert scopes[0]["entries"] == 2
    assert scopes[1]["entries"] == 0
    assert scopes[1]["has_manifest"] is True


def test_show_says_all_of_an_entry(modcache: Program, filled: Path) -> None:
    outcome = modcache("show", filled, "key-0", "--json")
    assert outcome.status == SUCCESS
    first, second = outcome.json()["entries"]
    assert (first["scope"], second["scope"]) == ("encoder@1", "encoder@2")
    assert first["value"] == "float32[3, 256]"
    assert first["damage"] is None
    assert (filled / "segments" / f"{first['segment']}.seg").exists()
    shown = modcache("show", filled, "key-0", "--scope", "encoder@2")
    assert shown.status == SUCCESS
    assert "encoder@2" in shown.data
    assert "encoder@1" not in shown.data


def test_a_key_that_is_not_there_is_a_finding(modcache: Program, filled: Path) -> None:
    outcome = modcache("show", filled, "key-9")
    assert (outcome.status, outcome.data) == (FINDINGS, "")
    assert "no entry under the key 'key-9'" in outcome.messages
    assert modcache("show", filled, "key-").status == FINDINGS


def test_show_finds_damage(modcache: Program, filled: Path) -> None:
    entry = modcache("show", filled, "key-0", "--scope", "encoder@1", "--json").json()["entries"][0]
    segment = filled / "segments" / f"{entry['segment']}.seg"
    data = bytearray(segment.read_bytes())
    data[entry["offset"] + 512] ^= 1  # in the payload
    segment.write_bytes(data)
    outcome = modcache("show", filled, "key-0", "--scope", "encoder@1", "--json")
    assert outcome.status == FINDINGS
    assert outcome.json()["entries"][0]["damage"]
    assert "damaged" in modcache("show", filled, "key-0").data
    assert modcache("show", filled, "key-1").status == SUCCESS


@pytest.mark.parametrize("command", [["stats"], ["ls"], ["ls", "--long"], ["ls", "--scopes"]])
def test_reading_changes_no_byte(modcache: Program, filled: Path, command: list[str]) -> None:
    before = bytes_below(filled)
    assert modcache(command[0], filled, *command[1:]).status == SUCCESS
    assert modcache("show", filled, "key-0").status == SUCCESS
    assert bytes_below(filled) == before


def test_reading_while_another_process_stores(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    for count in range(1, 4):
        writer.put(key=f"round-{count}-", count=10)
        writer.flush()
        assert modcache("stats", directory, "--json").json()["entries"] == 10 * count
        assert len(modcache("ls", directory, "--json").json()["entries"]) == 10 * count


def test_reading_after_a_process_was_killed(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    writer.put(key="k", count=10)
    writer.flush()
    writer.kill()
    assert modcache("stats", directory, "--json").json()["entries"] == 10


def test_without_a_database_the_segments_are_read(modcache: Program, filled: Path) -> None:
    for path in filled.glob("index.sqlite*"):
        path.unlink()
    assert modcache("stats", filled, "--json").json()["entries"] == 7
    assert not (filled / "index.sqlite").exists()


def test_a_huge_listing_streams(modcache: Program, directory: Path, writer: FillDirectory) -> None:
    count = 20_000
    writer.put(key="k", count=count, shape=[1])
    writer.flush()
    assert len(modcache("ls", directory).lines) == 1 + count
    entries = modcache("ls", directory, "--json").json()["entries"]
    assert len({entry["key"] for entry in entries}) == count


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_who_had_enough_is_no_failure(
    directory: Path, writer: FillDirectory, form: list[str]
) -> None:
    writer.put(key="k", count=20_000, shape=[1])
    writer.flush()
    with subprocess.Popen(
        [binary("modcache"), "ls", directory, *form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == SUCCESS


def test_output_that_cannot_be_written_is_told(filled: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [binary("modcache"), "ls", filled], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == MISUSE
    assert b"No space left" in done.stderr
