# SPDX-License-Identifier: Apache-2.0
"""pack and unpack, and reading commands with a pack in the place of a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import FINDINGS, MISUSE, SUCCESS, FillDirectory, Outcome, bytes_below
from test_why import MANIFEST, OTHER

Program = Callable[..., Outcome]


def entries_of(modcache: Program, place: Path) -> list[dict[str, Any]]:
    entries = modcache("ls", place, "--long", "--json").json()["entries"]
    where = ("segment", "offset", "sequence")
    kept = [{k: v for k, v in entry.items() if k not in where} for entry in entries]
    return sorted(kept, key=lambda entry: (entry["scope"], entry["key"]))


@pytest.fixture
def pack(modcache: Program, filled: Path) -> Path:
    path = filled.with_name("model.modcache")
    outcome = modcache("pack", filled, path, "--json")
    assert outcome.status == SUCCESS
    assert outcome.json()["entries"] == 7
    assert outcome.json()["file_bytes"] == path.stat().st_size
    return path


def test_a_pack_holds_what_the_directory_has(modcache: Program, filled: Path, pack: Path) -> None:
    before = pack.read_bytes()
    assert entries_of(modcache, pack) == entries_of(modcache, filled)
    directory = modcache("stats", filled, "--json").json()
    stats = modcache("stats", pack, "--json").json()
    for member in ("entries", "scopes", "value_bytes", "run_us", "first_stored_at"):
        assert stats[member] == directory[member]
    assert (stats["is_pack"], directory["is_pack"]) == (True, False)
    assert stats["mode"] == "read"
    assert stats["disk_bytes"] == len(before)
    assert modcache("show", pack, "key-1").status == SUCCESS
    assert modcache("show", pack, "key-9").status == FINDINGS
    assert modcache("verify", pack, "--json").json()["whole_entries"] == 7
    assert pack.read_bytes() == before


def test_it_comes_out_as_it_went_in(
    modcache: Program, filled: Path, pack: Path, tmp_path: Path
) -> None:
    outcome = modcache("unpack", pack, tmp_path / "new", "--json")
    assert outcome.status == SUCCESS
    assert (outcome.json()["entries"], outcome.json()["there"]) == (7, 0)
    assert entries_of(modcache, tmp_path / "new") == entries_of(modcache, filled)
    assert modcache("unpack", pack, tmp_path / "new", "--json").json()["there"] == 7
    assert modcache("verify", tmp_path / "new").status == SUCCESS


def test_part_of_a_directory(modcache: Program, filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "part"
    assert modcache("pack", filled, path, "--scope", "encoder@1", "--prefix", "key-1").status == 0
    assert [entry["key"] for entry in entries_of(modcache, path)] == ["key-1"]


def test_why_of_a_pack(modcache: Program, directory: Path, writer: FillDirectory) -> None:
    for scope, manifest in (("a", MANIFEST), ("b", OTHER)):
        writer.put(scope=scope, key="k")
        writer.keep_manifest(scope, **manifest)
    writer.flush()
    path = directory.with_name("pack")
    assert modcache("pack", directory, path).status == SUCCESS
    of_pack = modcache("why", path, "a", "b", "--json").json()
    assert of_pack == modcache("why", directory, "a", "b", "--json").json()
    assert len(of_pack["differences"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["clear", "PACK"],
        ["evict", "PACK", "--to", "1"],
        ["mode", "off", "PACK"],
        ["verify", "PACK", "--fix"],
        ["doctor", "PACK"],
        ["pack", "PACK", "OTHER"],
        ["unpack", "PACK", "PACK"],
    ],
)
def test_what_changes_a_directory_refuses_a_pack(
    modcache: Program, pack: Path, arguments: list[str]
) -> None:
    before = bytes_below(pack.parent)
    places = {"PACK": pack, "OTHER": pack.with_name("other")}
    outcome = modcache(*(places.get(word, word) for word in arguments))
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "is a file" in outcome.messages
    assert bytes_below(pack.parent) == before


def test_a_damaged_pack(modcache: Program, pack: Path) -> None:
    entry = modcache("show", pack, "key-2", "--json").json()["entries"][0]
    data = bytearray(pack.read_bytes())
    data[entry["offset"] + 512] ^= 1
    pack.write_bytes(data)
    outcome = modcache("verify", pack, "--json")
    assert outcome.status == FINDINGS
    assert [finding["key"] for finding in outcome.json()["findings"]] == ["key-2"]
    assert outcome.json()["whole_entries"] == 6
    assert modcache("show", pack, "key-2").status == FINDINGS
    unpacked = modcache("unpack", pack, pack.with_name("new"), "--json")
    assert unpacked.status == FINDINGS
    assert "1 damaged entries" in unpacked.messages


def test_a_pack_that_was_cut_short(modcache: Program, pack: Path) -> None:
    pack.write_bytes(pack.read_bytes()[:-100])
    for command in ("stats", "ls", "verify"):
        outcome = modcache(command, pack)
        assert outcome.status in (FINDINGS, MISUSE)
        assert outcome.messages


@pytest.mark.parametrize("into", ["home", "a file"])
def test_a_pack_goes_into_a_cache_or_a_new_directory(
    modcache: Program, pack: Path, tmp_path: Path, into: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("mine")
    (tmp_path / "a file").write_text("text")
    before = bytes_below(tmp_path)
    assert modcache("unpack", pack, tmp_path / into).status == MISUSE
    assert bytes_below(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert modcache("unpack", pack, tmp_path / "empty").status == SUCCESS


def test_a_file_that_is_no_pack_is_not_unpacked(
    modcache: Program, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no pack")
    for file in (tmp_path / "text", tmp_path / "none", filled):
        outcome = modcache("unpack", file, tmp_path / "into")
        assert (outcome.status, outcome.data) == (MISUSE, "")
        assert str(file) in outcome.messages
        assert not (tmp_path / "into").exists()
