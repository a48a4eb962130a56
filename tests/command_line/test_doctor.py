# SPDX-License-Identifier: Apache-2.0
"""doctor: what makes trouble, in a table with cures."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import FINDINGS, SUCCESS, FillDirectory, Outcome, binary, bytes_below
from redis_servers import RedisServer, free_port
from terminal import shown_in_terminal

Program = Callable[..., Outcome]


def findings(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {finding["check"]: finding for finding in outcome.json()["findings"]}


def test_a_healthy_directory(modcache: Program, filled: Path) -> None:
    before = bytes_below(filled)
    outcome = modcache("doctor", filled, "--json")
    problems = [f for f in findings(outcome).values() if f["state"] == "problem"]
    assert (outcome.status, problems) == (SUCCESS, [])
    assert set(findings(outcome)) == {
        "file system",
        "permissions",
        "free space",
        "database",
        "contents",
        "kinds of files",
        "clock",
        "leftover files",
        "processes",
        "limits",
        "environment",
        "server",
        "installation",
    }
    assert "SQLite 3." in findings(outcome)["database"]["found"]
    assert bytes_below(filled) == before


def test_for_people_it_is_a_table(modcache: Program, filled: Path) -> None:
    lines = modcache("doctor", filled, "--wide").lines
    assert lines[2].split() == ["CHECK", "STATE", "FOUND", "CURE"]
    assert len(lines) == 3 + 13


def test_table_fits_80_columns(modcache: Program, filled: Path) -> None:
    long_name = "a-letter-" + "from-somebody-" * 6 + ".txt"
    (filled / long_name).write_text("lost")
    lines = shown_in_terminal("doctor", filled, columns=80)
    assert max(map(len, lines)) <= 80
    assert "not of modcache:" in "".join(lines)
    header = next(line for line in lines if line.startswith("CHECK"))
    column = slice(header.index("FOUND"), header.index("CURE"))
    assert long_name in "".join(line[column].rstrip() for line in lines), "nothing is left out"
    lines = modcache("doctor", filled).lines[2:]
    too_long = [line for line in lines if len(line) > 80]
    assert all(long_name in line or "libmodcache.so" in line for line in too_long), too_long


def test_a_problem_has_a_cure_and_status_1(modcache: Program, filled: Path) -> None:
    (filled / "index.sqlite").write_bytes(b"no database")
    outcome = modcache("doctor", filled, "--json")
    assert outcome.status == FINDINGS
    database = findings(outcome)["database"]
    assert database["state"] == "problem"
    assert "verify" in database["cure"]


def test_a_server_that_does_not_answer_is_a_problem(
    modcache: Program, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCACHE_REMOTE", "redis://:secret@127.0.0.1:1/0")
    outcome = modcache("doctor", filled, "--json")
    assert outcome.status == FINDINGS
    server = findings(outcome)["server"]
    assert server["state"] == "problem"
    assert "127.0.0.1:1" in server["found"]
    assert "secret" not in outcome.data + outcome.messages


def test_a_server_that_answers(
    modcache: Program, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path / "redis") as redis:
        monkeypatch.setenv("MODCACHE_REMOTE", redis.address)
        outcome = modcache("doctor", filled, "--json")
        assert outcome.status == SUCCESS
        assert "answers" in findings(outcome)["server"]["found"]
        assert redis.ask("DBSIZE") == 0


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("somewhere", "somewhere"),
        ("redis://:hidden@h?prefix=a%20b", "prefix"),
        ("redis://:hidden@h?ports=1", "'ports'"),
        ("redis://user:hidden@127.0.0.1:PORT/0", "user:***@127.0.0.1:PORT"),
        ("redis://h?key_file=/none/there", "key_file"),
    ],
)
def test_a_wrong_address_is_a_problem(
    modcache: Program, filled: Path, monkeypatch: pytest.MonkeyPatch, address: str, says: str
) -> None:
    port = str(free_port())
    monkeypatch.setenv("MODCACHE_REMOTE", address.replace("PORT", port))
    outcome = modcache("doctor", filled, "--json")
    assert outcome.status == FINDINGS
    problems = [f["found"] for f in findings(outcome).values() if f["state"] == "problem"]
    assert any(says.replace("PORT", port) in found for found in problems), problems
    assert "hidden" not in outcome.data + outcome.messages


def test_a_password_is_not_shown(
    modcache: Program, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path / "redis", password="p@ss:word/1") as redis:
        for words in (["doctor", filled], ["doctor", filled, "--json"]):
            monkeypatch.setenv("MODCACHE_REMOTE", redis.address)
            outcome = modcache(*words)
            assert outcome.status == SUCCESS
            assert ":***@127.0.0.1" in outcome.data
            assert "ss:word" not in outcome.data + outcome.messages
            assert "ss%3Aword" not in outcome.data + outcome.messages
        monkeypatch.setenv("MODCACHE_REMOTE", redis.address.replace("word", "wrong"))
        outcome = modcache("doctor", filled, "--json")
        assert outcome.status == FINDINGS
        assert "WRONGPASS" in findings(outcome)["server"]["found"]
        assert "ss%3Awrong" not in outcome.data + outcome.messages


@pytest.mark.parametrize(
    "folder", ["lib/python3.11/site-packages/modcache/lib", "lib", "modcache/lib", "."]
)
def test_the_library_of_the_remote_tier_is_found_next_to_the_program(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    program = binary("modcache")
    library = program.parent.parent / "libmodcache_remote.so"
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    shutil.copy2(program, venv / "bin/modcache")

    def found_by(command: str | Path) -> str:
        # As a shell calls it.
        words = ["sh", "-c", '"$@"', "sh", command, "doctor", filled, "--json"]
        done = subprocess.run(words, capture_output=True, check=False, timeout=120)
        outcome = Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
        return str(findings(outcome)["server"]["found"])

    with RedisServer(tmp_path / "redis") as redis:
        monkeypatch.setenv("MODCACHE_REMOTE", redis.address)
        assert "libmodcache_remote.so, cannot be loaded" in found_by(venv / "bin/modcache")
        (venv / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, venv / folder)
        monkeypatch.setenv("PATH", f"{venv / 'bin'}:{os.environ['PATH']}")
        assert found_by("modcache").endswith("answers")


def test_files_of_the_future(modcache: Program, filled: Path) -> None:
    os.utime(filled / "control", (2_000_000_000, 4_000_000_000))
    outcome = modcache("doctor", filled, "--json")
    assert outcome.status == FINDINGS
    assert "control" in findings(outcome)["clock"]["found"]


def test_strangers_are_named(modcache: Program, filled: Path) -> None:
    (filled / "letter.txt").write_text("lost")
    outcome = modcache("doctor", filled, "--json")
    assert outcome.status == SUCCESS
    assert "letter.txt" in findings(outcome)["leftover files"]["found"]


def test_processes_that_have_it_open(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    writer.put(key="k")
    writer.flush()
    found = findings(modcache("doctor", directory, "--json"))["processes"]["found"]
    assert found.startswith("1 has it open: ")
    assert "fill_directory" in found


def test_few_open_files_are_a_problem(modcache: Program, filled: Path) -> None:
    def with_few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    outcome = modcache("doctor", filled, "--json", preexec_fn=with_few)
    assert outcome.status == FINDINGS
    assert "ulimit" in findings(outcome)["limits"]["cure"]


def test_a_budget_that_the_disk_does_not_have(
    modcache: Program, filled: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MODCACHE_DISK", "1000PB")
    assert findings(modcache("doctor", filled, "--json"))["free space"]["state"] == "note"


def test_settings_that_are_none(modcache: Program, filled: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MODCACHE_DISK", "plenty")
    outcome = modcache("doctor", filled, "--json")
    assert outcome.status == FINDINGS
    assert "plenty" in findings(outcome)["environment"]["found"]
