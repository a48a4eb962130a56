# SPDX-License-Identifier: Apache-2.0
"""Something else in the place of each file of a directory: what the commands make of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program import FINDINGS, MISUSE, ROOT, SUCCESS, Outcome

sys.path.append(str(ROOT / "tests/python"))
from strangers import Stranger, cases, path_of

Program = Callable[..., Outcome]

COMMANDS = [
    *[("ls",), ("ls", "--scopes"), ("stats",), ("show", "key-1"), ("why", "key-1")],
    *[("doctor",), ("verify",), ("mode",), ("mode", "on"), ("clear", "--prefix", "none")],
    *[("evict", "--to", "1GB"), ("pack", "made.modcache")],
]


def words_of(command: tuple[str, ...], directory: Path, outside: Path) -> list[str | Path]:
    name, *rest = command
    if name == "mode":
        return [name, *rest, directory]
    if name == "pack":
        return [name, directory, outside.parent / rest[0]]
    return [name, directory, *rest]


@pytest.mark.parametrize(("file", "thing"), cases())
def test_no_command_waits_or_touches_what_is_outside(
    modcache: Program, filled: Path, tmp_path: Path, file: str, thing: str
) -> None:
    stranger = Stranger(tmp_path / "outside")
    path = path_of(filled, file)
    stranger.put(thing, path)
    for command in COMMANDS:
        started = time.monotonic()
        outcome = modcache(*words_of(command, filled, tmp_path / "outside"))
        assert time.monotonic() - started < 10, f"{command} waits for what never comes"
        assert outcome.status in (SUCCESS, FINDINGS, MISUSE), (command, outcome)
        assert outcome.status == SUCCESS or outcome.data or outcome.messages, command
        assert stranger.is_untouched, command


@pytest.mark.parametrize(("file", "thing"), cases())
def test_verify_and_doctor_say_what_it_is_and_fix_makes_way(
    modcache: Program, filled: Path, tmp_path: Path, file: str, thing: str
) -> None:
    stranger = Stranger(tmp_path / "outside")
    path = path_of(filled, file)
    stranger.put(thing, path)
    name = str(path.relative_to(filled))
    kind = {"pipe": "named pipe", "link": "symbolic link", "dangling-link": "symbolic link"}
    kind["hard-link"] = "regular file" if file in ("segments", "notes") else "hard links"

    found = modcache("verify", filled, "--json").json()["findings"]
    (finding,) = [one for one in found if one["kind"] == "foreign-file"]
    assert finding["file"] == name
    assert kind.get(thing, thing) in finding["what"]
    doctor = modcache("doctor", filled, "--json")
    assert doctor.status == FINDINGS
    assert kind.get(thing, thing) in doctor.data

    fixed = modcache("verify", filled, "--fix")
    assert fixed.status in (FINDINGS, MISUSE)
    assert stranger.is_untouched
    if file == "segments":
        assert "segments" in fixed.messages, "which is left as it is"
    elif finding["is_damage"]:
        assert (filled / (path.name + ".foreign")).is_symlink() == ("link" in thing) or (
            thing == "hard-link"
        )
        assert modcache("verify", filled).status == SUCCESS
