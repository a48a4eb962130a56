# SPDX-License-Identifier: Apache-2.0
"""What every command has in common: help, wrong arguments, directories that are none."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from program import FINDINGS, MISUSE, ROOT, SUCCESS, Outcome, bytes_below

Program = Callable[..., Outcome]

# As they are called with a directory.
OF_A_DIRECTORY = {
    "stats": ["DIR"],
    "report": ["DIR", "-o", "-"],
    "ls": ["DIR"],
    "show": ["DIR", "key-0"],
    "verify": ["DIR"],
    "mode": ["DIR"],
    "clear": ["DIR"],
    "evict": ["DIR", "--to", "1GB"],
    "pack": ["DIR", "/dev/null/not to be written"],
    "why": ["DIR"],
    "doctor": ["DIR"],
}
COMMANDS = [*OF_A_DIRECTORY, "unpack", "path"]
VERSION = re.findall(r"project\(modcache VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())


def called(command: str, directory: Path) -> list[str | Path]:
    words = OF_A_DIRECTORY[command]
    return [command, *(directory if word == "DIR" else word for word in words)]


def test_help_lists_every_command(modcache: Program) -> None:
    outcome = modcache("--help")
    assert (outcome.status, outcome.messages) == (SUCCESS, "")
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", outcome.data, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_version(modcache: Program, command: str) -> None:
    outcome = modcache(command, "--help")
    assert (outcome.status, outcome.messages) == (SUCCESS, "")
    assert f"Usage: modcache {command} " in outcome.data
    assert "--json" in outcome.data
    assert modcache(command, "--version").data == f"modcache {VERSION[0]}\n"


@pytest.mark.parametrize("words", [["--version", "--json"], ["--json", "--version"], ["ls"]])
def test_the_version_as_json(modcache: Program, words: list[str]) -> None:
    words = words if len(words) == 2 else [*words, "--json", "--version"]
    outcome = modcache(*words)
    assert (outcome.status, outcome.messages) == (SUCCESS, "")
    assert outcome.json() == {"version": VERSION[0]}


@pytest.mark.parametrize(
    "words",
    [
        ["\x1b[31m"],
        ["ls", "--\x1b[31m"],
        ["ls", "DIR", "\x1b[31m"],
        ["ls", "\u009b31m"],
        ["mode", "\u202e"],
    ],
)
def test_what_a_terminal_would_obey_is_escaped_in_messages(
    modcache: Program, words: list[str]
) -> None:
    outcome = modcache(*words)
    assert outcome.status == MISUSE
    assert outcome.messages
    assert not set("\x1b\u009b\u202e") & set(outcome.messages)


def test_the_version(modcache: Program) -> None:
    assert modcache("--version") == Outcome(SUCCESS, f"modcache {VERSION[0]}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command was given"),
        (["lss"], "there is no command 'lss'; valid are: stats, report, ls, show"),
        (["ls", "DIR", "--no-such"], "--no-such"),
        (["ls", "DIR", "DIR"], "not expected"),
        (["ls", "DIR", "--limit", "many"], "--limit is 'many', but must be a number"),
        (["ls", "DIR", "--limit"], "--limit"),
        (["show"], "modcache show takes [DIR] KEY"),
        (["clear", "DIR", "--scope", ""], "--scope is empty"),
        (["clear", "DIR", "--prefix", ""], "--prefix is empty"),
        (["pack", "DIR", "/dev/null/one", "--scope", ""], "--scope is empty"),
        (["pack", "DIR", "/dev/null/one", "--prefix", ""], "--prefix is empty"),
        (["mode", "DIR", "off"], "the mode comes before the directory"),
        (["mode", "offf", "DIR"], "off, read, on"),
        (["path", "DIR"], "not expected"),
        (["why", "DIR", "a", "b", "c"], "not expected"),
    ],
)
def test_misuse_says_what_is_valid(
    modcache: Program, filled: Path, arguments: list[str], message: str
) -> None:
    before = bytes_below(filled)
    outcome = modcache(*(filled if word == "DIR" else word for word in arguments))
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert message in outcome.messages
    assert bytes_below(filled) == before


@pytest.mark.parametrize("command", OF_A_DIRECTORY)
def test_a_directory_that_is_none_is_misuse(
    modcache: Program, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("not to be cleared")
    before = bytes_below(tmp_path)
    for name, message in [
        ("none", "is not there"),
        ("file", "is a file"),
        ("empty", "is an empty directory, no cache"),
        ("home", "is no cache directory"),
    ]:
        outcome = modcache(*called(command, tmp_path / name))
        assert (outcome.status, outcome.data) == (MISUSE, ""), name
        assert message in outcome.messages
        assert "MODCACHE_DIR" in outcome.messages
    assert bytes_below(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "home"]


@pytest.mark.parametrize("command", OF_A_DIRECTORY)
def test_the_directory_is_modcache_dirs_by_default(
    modcache: Program, filled: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for word in OF_A_DIRECTORY[command] if word != "DIR"]
    outcome = modcache(command, *words)
    assert outcome.status == MISUSE
    assert "MODCACHE_DIR is not set" in outcome.messages
    monkeypatch.setenv("MODCACHE_DIR", os.fspath(filled))
    if command != "pack":  # the file of this table is none
        assert modcache(command, *words).status == SUCCESS


def test_home_directory_in_modcache_dir_is_expanded(
    modcache: Program, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", os.fspath(filled.parent))
    monkeypatch.setenv("MODCACHE_DIR", f"~/{filled.name}")
    assert modcache("stats", "--json").json()["directory"] == os.fspath(filled)
    monkeypatch.setenv("MODCACHE_DIR", "~no-such-user/cache")
    outcome = modcache("stats")
    assert outcome.status == MISUSE
    assert "there is no user 'no-such-user'" in outcome.messages


@pytest.mark.parametrize("command", OF_A_DIRECTORY)
def test_a_directory_of_a_newer_version_is_left_alone(
    modcache: Program, filled: Path, command: str
) -> None:
    with sqlite3.connect(filled / "index.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = bytes_below(filled)
    outcome = modcache(*called(command, filled))
    if command == "mode":  # it reads the control page alone
        assert outcome.status == SUCCESS
    else:
        assert outcome.status == (FINDINGS if command == "doctor" else MISUSE)
        assert "version 99" in outcome.messages + outcome.data
    assert bytes_below(filled) == before


@pytest.mark.parametrize("mode", ["off", "on"])
def test_the_mode_of_a_directory_of_a_newer_version_cannot_be_set(
    modcache: Program, filled: Path, mode: str
) -> None:
    with sqlite3.connect(filled / "index.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for left_out in ("", "control", "lock"):  # which setting the mode would make
        if left_out:
            (filled / left_out).unlink()
        before = bytes_below(filled)
        outcome = modcache("mode", mode, filled)
        assert (outcome.status, outcome.data) == (MISUSE, "")
        assert "version 99" in outcome.messages
        assert bytes_below(filled) == before


# What names alone would take for a cache.
FOREIGN = {
    "debian package": {"control": b"Package: modcache\nVersion: 1\n"},
    "long control": {"control": b"Package: modcache\n" * 1000},
    "videos": {"segments/0001.seg": b"video", "segments/00000000000000000.seg": b""},
    "database": {"index.sqlite": b"SQLite format 3\0" + bytes(4080)},
    "text": {"index.sqlite": b"text", "lock": b"", "notes/today": b"to do"},
}
CHANGING = [
    ["mode", "off", "DIR"],
    ["clear", "DIR"],
    ["evict", "DIR", "--to", "1"],
    ["verify", "DIR", "--fix"],
]


@pytest.mark.parametrize("arguments", [*([c, *w] for c, w in OF_A_DIRECTORY.items()), *CHANGING])
@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
def test_a_directory_of_others_with_names_of_ours_is_none(
    modcache: Program, tmp_path: Path, files: dict[str, bytes], arguments: list[str]
) -> None:
    place = tmp_path / "place"
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    outcome = modcache(*(place if word == "DIR" else word for word in arguments))
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "is no cache directory" in outcome.messages
    assert bytes_below(place) == files


@pytest.mark.parametrize("left", ["index.sqlite", "control", "segments"])
def test_a_cache_is_known_by_any_one_sign(modcache: Program, filled: Path, left: str) -> None:
    for path in filled.iterdir():
        if path.name == left:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    if left != "control":
        (filled / "control").write_text("Package: modcache\n")
    assert modcache("mode", filled).status == SUCCESS
    assert modcache("doctor", filled).status in (SUCCESS, FINDINGS)


def drop_privileges() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def open_way_to(directory: Path) -> None:
    """Lets other users reach the directory; what is in it stays as it is."""
    for parent in directory.parents:
        if parent.owner() == directory.owner() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


@pytest.mark.parametrize("command", OF_A_DIRECTORY)
def test_a_directory_that_may_not_be_read(modcache: Program, filled: Path, command: str) -> None:
    open_way_to(filled)
    filled.chmod(0o000)
    try:
        outcome = modcache(*called(command, filled), preexec_fn=drop_privileges)
    finally:
        filled.chmod(0o700)
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "cannot be" in outcome.messages


def test_a_directory_that_may_only_be_read(modcache: Program, filled: Path) -> None:
    open_way_to(filled)
    for path in [filled, *filled.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = bytes_below(filled)
    for command in ("stats", "ls", "show", "verify", "why"):
        outcome = modcache(*called(command, filled), preexec_fn=drop_privileges)
        assert outcome.status == SUCCESS, outcome.messages
    outcome = modcache("clear", filled, preexec_fn=drop_privileges)
    assert outcome.status == MISUSE
    assert "cannot be written" in outcome.messages
    assert bytes_below(filled) == before
