# SPDX-License-Identifier: Apache-2.0
"""top: live in a terminal, line after line elsewhere, and leaving the terminal as it was."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from program import MISUSE, SUCCESS, FillDirectory, Outcome, binary, bytes_below
from terminal import Terminal

Program = Callable[..., Outcome]
FAST = ["--interval", "0.1"]
ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"
ESCAPES = re.compile(r"\x1b\[[?0-9]*[A-Za-z]")


@pytest.fixture
def busy(directory: Path, writer: FillDirectory) -> Path:
    """A directory in which a process counts."""
    writer.put(scope="encoder@1")
    writer.put(scope="hostile\x1b]0;title\x07")
    writer.keep_manifest("encoder@1", **{"class": "models.Encoder"})
    writer.do("count", scope="encoder@1", hits_disk=9, misses=1, saved_us=2_000_000)
    writer.do("count", scope="hostile\x1b]0;title\x07", misses=1)
    writer.flush()
    return directory


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10)])
def test_it_shows_what_happens(busy: Path, writer: FillDirectory, columns: int, rows: int) -> None:
    with Terminal("top", busy, *FAST, columns=columns, rows=rows) as terminal:
        terminal.read_until("- now   81.8 % in total")
        writer.do("count", scope="encoder@1", hits_disk=989)
        terminal.read_until("100 % now   99.8 % in total")
        terminal.read_until("models.Encoder")
        terminal.type("q")
        everything = terminal.read_to_end()
    assert terminal.process.returncode == SUCCESS
    assert ENTERED in everything
    assert everything.rstrip().endswith(LEFT)
    assert "\x1b]" not in everything
    assert "\x07" not in everything
    for line in ESCAPES.sub("", everything.replace("\x1b[H", "\n")).splitlines():
        assert len(line) <= columns, line


@pytest.mark.parametrize("how", ["q", "Q", "\x03", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_as_it_was_however_it_ends(busy: Path, how: str | signal.Signals) -> None:
    with Terminal("top", busy, *FAST, columns=80) as terminal:
        terminal.read_until("hit rate")
        assert terminal.settings_now() != terminal.settings
        if isinstance(how, str):
            terminal.type(how)
        else:
            terminal.process.send_signal(how)
        everything = terminal.read_to_end()
        assert terminal.process.returncode == SUCCESS
        assert terminal.settings_now() == terminal.settings
    assert everything.rstrip().endswith("\x1b[?25h" + LEFT), "with a cursor"


def test_another_size_of_the_terminal_is_seen_at_once(busy: Path) -> None:
    with Terminal("top", busy, "--interval", "3600", columns=40, rows=10) as terminal:
        terminal.read_until("CACHED")
        terminal.resize(100, 30)
        shown = terminal.read_until("q quits")
        assert "MISSES/S" in shown
        terminal.type("q")
        terminal.read_to_end()


def test_a_directory_that_goes_away_is_told_and_may_come_back(
    busy: Path, writer: FillDirectory
) -> None:
    with Terminal("top", busy, *FAST, columns=200) as terminal:
        terminal.read_until("81.8 % in total")
        busy.rename(busy.with_name("away"))
        terminal.read_until("is not there")
        busy.with_name("away").rename(busy)
        writer.do("count", scope="encoder@1", misses=9)
        terminal.read_until("45.0 % in total")
        terminal.type("q")
        terminal.read_to_end()


def test_elsewhere_each_interval_is_a_line(busy: Path, writer: FillDirectory) -> None:
    with subprocess.Popen(
        [binary("modcache"), "top", busy, *FAST], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:3] == ["TIME", "HIT", "RATE"]
        writer.do("count", scope="encoder@1", hits_disk=89)
        lines: list[str] = []
        while len(lines) < 300 and not any("98.0 %" in line for line in lines):
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=30) == SUCCESS
    assert any("98.0 %" in line for line in lines)
    assert "\x1b" not in "".join(lines) + rest


def test_it_ends_with_its_reader(busy: Path) -> None:
    with subprocess.Popen(
        [binary("modcache"), "top", busy, *FAST], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == SUCCESS


def test_once_for_machines_and_for_people(modcache: Program, busy: Path) -> None:
    told = modcache("top", busy, *FAST, "--json").json()
    assert (told["mode"], told["processes"]) == ("on", 1)
    assert (told["now"]["hits"], told["now"]["hit_rate"]) == (0, None)
    assert (told["total"]["hits"], told["total"]["misses"]) == (9, 2)
    assert told["scopes"][0]["class"] == "models.Encoder"
    assert told["interval_us"] >= 100_000
    outcome = modcache("top", busy, *FAST, "--once", env={"MODCACHE_DISK": "20MB"})
    assert outcome.status == SUCCESS
    assert "20.0 MB" in outcome.data
    assert "81.8 %" in outcome.data


def test_looking_changes_no_byte(modcache: Program, busy: Path, writer: FillDirectory) -> None:
    writer.leave()
    before = bytes_below(busy)
    assert modcache("top", busy, *FAST, "--once").status == SUCCESS
    assert bytes_below(busy) == before


@pytest.mark.parametrize("interval", ["", "0", "-1", "nan", "inf", "1s", "1e3", "4000"])
def test_an_interval_is_a_number_of_seconds(modcache: Program, busy: Path, interval: str) -> None:
    outcome = modcache("top", busy, f"--interval={interval}")
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "--interval" in outcome.messages


def test_a_pack_is_refused(modcache: Program, filled: Path, tmp_path: Path) -> None:
    assert modcache("pack", filled, tmp_path / "pack").status == SUCCESS
    outcome = modcache("top", tmp_path / "pack")
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "this needs a directory" in outcome.messages
