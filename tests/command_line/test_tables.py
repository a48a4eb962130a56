# SPDX-License-Identifier: Apache-2.0
"""What people read: names as they wrote them, in the order that they count in, as wide as fits."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from program import SUCCESS, FillDirectory, Outcome, filling
from terminal import shown_in_terminal

Program = Callable[..., Outcome]
SCOPE = "0123456789abcdef" * 4


def columns_of(line: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in line
    )


@pytest.fixture
def wide(directory: Path, writer: FillDirectory) -> Path:
    """Entries with names that no terminal has room for."""
    for key in (
        "train/images/n01440764/" + "x" * 60 + "/7.jpg",
        "画像" * 40,
        "\x1b]0;title\x07" * 9,
    ):
        writer.put(scope=SCOPE, key=key, shape=[4])
    writer.keep_manifest(SCOPE, **{"class": "project.training.embed", "method": "forward"})
    writer.flush()
    writer.leave()
    return directory


def test_keys_come_as_people_count(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    keys = ["0", "1", "2", "9", "10", "11", "100", "img-2.png", "img-10.png", "9" * 30, "é"]
    for key in sorted(keys):
        writer.put(key=key)
    writer.flush()
    wanted = [*keys[:7], "9" * 30, *keys[7:9], "é"]
    said = modcache("ls", directory, "--json").json()["entries"]
    assert [entry["key"] for entry in said] == wanted
    assert [line.split()[0] for line in modcache("ls", directory).lines[1:]] == wanted
    first = modcache("ls", directory, "--json", "--limit", "5").json()["entries"]
    assert [entry["key"] for entry in first] == wanted[:5]
    some = modcache("ls", directory, "--json", "--prefix", "img").json()["entries"]
    assert [entry["key"] for entry in some] == ["img-2.png", "img-10.png"]


def test_scopes_come_as_people_count(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    for scope in ("encoder@10", "encoder@2", "encoder@1"):
        writer.put(scope=scope)
    writer.flush()
    scopes = modcache("ls", directory, "--scopes", "--json").json()["scopes"]
    assert [scope["scope"] for scope in scopes] == ["encoder@1", "encoder@2", "encoder@10"]


def test_a_cached_function_has_its_name_everywhere(modcache: Program, wide: Path) -> None:
    name = "project.training.embed"
    assert modcache("ls", wide, "--json").json()["entries"][0]["class"] == name
    key = modcache("ls", wide, "--json").json()["entries"][0]["key"]
    assert modcache("show", wide, key, "--json").json()["entries"][0]["class"] == name
    for command in (["ls", wide], ["ls", wide, "--scopes"], ["show", wide, key], ["why", wide]):
        outcome = modcache(*command)
        assert outcome.status == SUCCESS
        assert name in outcome.data, command


def test_what_goes_into_a_file_is_whole(modcache: Program, wide: Path) -> None:
    outcome = modcache("ls", wide, env={"COLUMNS": "40"})
    assert SCOPE in outcome.data
    assert "x" * 60 + "/7.jpg" in outcome.data
    assert "…" not in outcome.data


@pytest.mark.parametrize("options", [[], ["--scopes"], ["--long"]])
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_tables_fit_the_terminal(wide: Path, columns: int, options: list[str]) -> None:
    lines = shown_in_terminal("ls", wide, *options, columns=columns)
    assert len(lines) == (2 if options == ["--scopes"] else 4)
    for line in lines:
        assert columns_of(line) <= columns, line
        assert "\x1b" not in line
    assert options == ["--scopes"] or "…" in lines[1]
    assert options == ["--scopes"] or " 16 B" in lines[1], "numbers are whole"


def test_where_no_table_fits_each_row_is_a_list(wide: Path) -> None:
    lines = shown_in_terminal("ls", wide, columns=40)
    labels = [line.split()[0] for line in lines if line[:1].strip()]
    assert labels[:4] == ["KEY", "SCOPE", "CACHED", "FORM"]
    assert max(map(columns_of, lines)) <= 40
    assert "16 B" in "".join(lines)


def test_every_command_fits_the_terminal(modcache: Program, wide: Path) -> None:
    other = "project/" + "s" * 100 + "@1"
    with filling(wide) as writer:
        writer.put(scope=other, key="k", shape=[4])
        writer.keep_manifest(other, **{"class": "project." + "c" * 80, "method": "forward"})
        writer.flush()
        writer.leave()
    key = modcache("ls", wide, "--json").json()["entries"][0]["key"]
    for command in (
        ["doctor", wide],
        ["stats", wide],
        ["stats", wide, "--by-scope"],
        ["ls", wide, "--scopes"],
        ["show", wide, key],
        ["why", wide],
        ["why", wide, SCOPE, other],
        ["why", wide, SCOPE, "no such scope of all that are in this directory, I am sure of it"],
        ["verify", wide],
        ["mode", wide],
    ):
        for columns in (80, 120):
            for line in shown_in_terminal(*command, columns=columns):
                assert columns_of(line) <= columns, (command, line)


def test_help_fits_80_columns(modcache: Program) -> None:
    main = modcache("--help").data
    names = re.findall(r"^  (\w+) {3,}", main.partition("Commands:")[2], re.MULTILINE)
    assert "doctor" in names
    for text in [main, *(modcache(name, "--help").data for name in names)]:
        assert [line for line in text.splitlines() if len(line) > 80] == []


def test_everything_can_be_had_in_a_terminal(wide: Path) -> None:
    assert SCOPE in "".join(shown_in_terminal("ls", wide, "--wide", columns=80))
