# SPDX-License-Identifier: Apache-2.0
"""docs/command-line.md: what it shows is what comes, and it leaves nothing out."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from program import ROOT, SUCCESS, FillDirectory, Outcome, binary
from test_misuse import COMMANDS
from test_why import MANIFEST, OTHER

Program = Callable[..., Outcome]
PAGE = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shown(directory: Path, writer: FillDirectory) -> Path:
    """The folder in which the page's commands run; `features` in it is the cache."""
    writer.put(scope="vit-b32@1", key="train/", count=4, shape=[512], run_us=8200)
    writer.put(scope="vit-b32@2", key="train/0", shape=[512], run_us=8400)
    writer.keep_manifest("vit-b32@1", **MANIFEST)
    writer.keep_manifest("vit-b32@2", **OTHER)
    hits = {"hits_memory": 10, "hits_disk": 20, "saved_us": 328_000_000}
    writer.do("count", scope="vit-b32@1", **hits, misses=2, stored=2, run_us=16_400)
    writer.do("count", scope="vit-b32@1", bypassed_grad=1)
    writer.flush()
    writer.leave()
    directory.rename(directory.with_name("features"))
    return directory.parent


def commands_in(block: str) -> list[tuple[str, str]]:
    """Each command line of a block, and what it shows."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert parts[0] == "", "a block begins with a command"
    return [tuple(part.split("\n", 1)) for part in parts[1:]]  # type: ignore[misc]


def run_in(folder: Path, line: str) -> str:
    """What a person sees, messages and exit status included."""
    path = f"{binary('modcache').parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": path, "TZ": "UTC"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_every_command_of_the_page_shows_what_it_says(shown: Path) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    checker = doctest.OutputChecker()
    wrong = []
    assert BLOCKS
    for block in BLOCKS:
        for line, expected in commands_in(block):
            got = run_in(shown, line)
            if not checker.check_output(expected, got, options):
                wrong.append(f"$ {line}\n{expected}--- and it was:\n{got}")
    assert not wrong, "\n".join(wrong)


def test_the_page_has_every_command_and_option(modcache: Program) -> None:
    for command in COMMANDS:
        assert f"\n### {command}\n" in PAGE, command
        section = PAGE.split(f"\n### {command}\n", 1)[1].split("\n#", 1)[0]
        for option in re.findall(r"^  (?:-h,)?(--[\w-]+)", modcache(command, "--help").data, re.M):
            if option not in ("--help", "--json", "--version", "--wide"):
                assert f"`{option}" in section, f"{command} {option}"
        words = re.search(r"^Usage: (.*) \[OPTIONS\]", modcache(command, "--help").data, re.M)
        assert words is not None
        assert f"`{words.group(1).strip()}`" in section


def members_in(section: str) -> set[str]:
    """The members that a section's tables of JSON name."""
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


@pytest.mark.parametrize(
    ("title", "line", "at"),
    [
        ("stats", "stats features", None),
        ("stats", "stats features", "counted"),
        ("stats", "stats features --by-scope", "by_scope"),
        ("stats", "stats features --by-day", "by_day"),
        ("report", "report features -o report.html", None),
        ("ls", "ls features --long", "entries"),
        ("ls", "ls features --scopes", "scopes"),
        ("show", "show features train/1", "entries"),
        ("why", "why features vit-b32@1 vit-b32@2", "scopes"),
        ("why", "why features vit-b32@1 vit-b32@2", "differences"),
        ("verify", "verify features", None),
        ("doctor", "doctor features", "findings"),
        ("clear", "clear features --prefix none", None),
        ("evict", "evict features --to 1GB", None),
        ("mode", "mode features", None),
        ("pack", "pack features one", None),
        ("unpack", "unpack one two", None),
    ],
)
def test_the_page_has_every_member_of_json(
    modcache: Program, shown: Path, title: str, line: str, at: str | None
) -> None:
    if title == "unpack":
        assert modcache("pack", "features", "one", cwd=shown).status == SUCCESS
    said = modcache(*shlex.split(line), "--json", cwd=shown).json()
    section = PAGE.split(f"\n### {title}\n", 1)[1].split("\n### ", 1)[0]
    if at is not None:
        assert f"`{at}`" in section
    item = said if at is None else said[at]
    missing = set(item if isinstance(item, dict) else item[0]) - members_in(section)
    if title == "show":  # as of `ls`
        missing -= members_in(PAGE.split("\n### ls\n", 1)[1].split("\n### ", 1)[0])
    assert missing == set()
