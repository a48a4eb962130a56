# SPDX-License-Identifier: Apache-2.0
"""pack and unpack, and reading commands with a pack in the place of a directory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import FINDINGS, MISUSE, SUCCESS, FillDirectory, Outcome, binary, bytes_below
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


def test_only_a_pack_or_an_empty_file_is_replaced(
    modcache: Program, filled: Path, pack: Path, tmp_path: Path
) -> None:
    model, pipe, folder, empty = (
        tmp_path / name for name in ("model.pt", "pipe", "folder", "empty")
    )
    model.write_bytes(b"weights" * 100)
    os.mkfifo(pipe)
    folder.mkdir()
    empty.touch()
    for path in (model, pipe, folder):
        outcome = modcache("pack", filled, path)
        assert outcome.status == MISUSE
        assert f"'{path}' is there and is no pack" in outcome.messages
    assert model.read_bytes() == b"weights" * 100
    assert pipe.is_fifo()
    assert folder.is_dir()
    whole = pack.read_bytes()
    pack.write_bytes(whole[: len(whole) // 2])
    for path in (empty, pack, pack):
        assert modcache("pack", filled, path).status == SUCCESS
        assert modcache("verify", path).status == SUCCESS


def test_beyond_the_limit_of_a_files_size_it_says_so(filled: Path, tmp_path: Path) -> None:
    command = f'ulimit -f 4; exec "$0" pack "{filled}" "{tmp_path}/new"'
    outcome = subprocess.run(
        ["bash", "-c", command, binary("modcache")], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == MISUSE
    assert "File too large" in outcome.stderr
    assert not (tmp_path / "new").exists()


def test_part_of_a_directory(modcache: Program, filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "part"
    assert modcache("pack", filled, path, "--scope", "encoder@1", "--prefix", "key-1").status == 0
    assert [entry["key"] for entry in entries_of(modcache, path)] == ["key-1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scope", "encoder"], "there is no scope 'encoder'"),
        (["--scope", "encoder@2", "--prefix", "none"], "no entry is what the options name"),
        (["--prefix", "none"], "no entry is what the options name"),
    ],
)
def test_what_names_no_entry_replaces_no_pack(
    modcache: Program, filled: Path, pack: Path, options: list[str], message: str
) -> None:
    before = bytes_below(pack.parent)
    outcome = modcache("pack", filled, pack, *options, "--json")
    assert outcome.status == FINDINGS
    said = json.loads(outcome.data)
    assert (said["file"], said["entries"], said["file_bytes"]) == (None, 0, None)
    assert message in outcome.messages
    assert f"'{pack}' was not written" in outcome.messages
    assert bytes_below(pack.parent) == before


def test_a_directory_without_entries_may_be_packed(modcache: Program, filled: Path) -> None:
    assert modcache("clear", filled).status == SUCCESS
    path = filled.with_name("empty")
    assert modcache("pack", filled, path, "--json").json()["entries"] == 0
    assert modcache("stats", path, "--json").json()["entries"] == 0


def test_of_other_scopes_nothing_is_packed(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    for scope in ("v1", "v10", "a v1"):
        writer.put(scope=scope, key="k")
        writer.keep_manifest(scope, **{**MANIFEST, "class": "v1"})
    writer.do("note", about="scopes \nmodels.Encoder.forward", text="3 v10\n4 a v1\n")
    writer.do("note", about="scopes \nmodels.Other.forward", text="3 v10\n2 v1\n")
    writer.do("note", about="fingerprint 1 torch 2.13.0 file 0 method forward", text="v1")
    writer.do("note", about="fingerprint 1 torch 2.13.0 file 1 method forward", text="v10")
    writer.flush()
    path = directory.with_name("pack")
    assert modcache("pack", directory, path, "--scope", "v1", "--json").json()["notes"] == 3
    scopes = modcache("ls", path, "--scopes", "--json").json()["scopes"]
    assert [(scope["scope"], scope["has_manifest"]) for scope in scopes] == [("v1", True)]
    assert b"models.Other" in path.read_bytes()
    assert b"models.Encoder.forward" not in path.read_bytes()


def test_unpacking_drives_nothing_out(
    modcache: Program, directory: Path, writer: FillDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.put(key="packed", count=100, shape=[25_000])
    writer.flush()
    path = directory.with_name("pack")
    assert modcache("pack", directory, path).status == SUCCESS
    assert modcache("clear", directory).status == SUCCESS
    writer.put(key="own", count=100, shape=[25_000])
    writer.flush()
    writer.leave()
    # Both: more than the directory has room for, and a directory that has more than that already.
    for budget in ("12MB", "5MB"):
        monkeypatch.setenv("MODCACHE_DISK", budget)
        outcome = modcache("unpack", path, directory, "--json")
        assert outcome.status == FINDINGS
        said = json.loads(outcome.data)
        assert said["not_kept"] > 50
        assert said["entries"] + said["there"] + said["not_kept"] == 100
        assert f"{said['not_kept']} entries found no room in" in outcome.messages
        assert "MODCACHE_DISK" in outcome.messages
        keys = [entry["key"] for entry in modcache("ls", directory, "--json").json()["entries"]]
        assert {f"own{i}" for i in range(100)} <= set(keys)
    monkeypatch.setenv("MODCACHE_DISK", "1GB")
    assert modcache("unpack", path, directory).status == SUCCESS


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
    assert modcache("ls", pack).status == SUCCESS
    unpacked = modcache("unpack", pack, pack.with_name("new"), "--json")
    assert unpacked.status == FINDINGS
    assert "1 damaged entries" in unpacked.messages


@pytest.mark.parametrize(
    "damaged",
    [
        lambda data: data[:-100],
        lambda data: data[: len(data) // 2],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    ],
    ids=["cut short", "cut in two", "first byte", "header", "footer"],
)
def test_a_pack_that_is_damaged_as_a_whole(
    modcache: Program, pack: Path, damaged: Callable[[bytes], bytes]
) -> None:
    pack.write_bytes(damaged(pack.read_bytes()))
    into = pack.with_name("into")
    for words in (["stats", pack], ["ls", pack], ["show", pack, "k"], ["unpack", pack, into]):
        outcome = modcache(*words)
        assert (outcome.status, outcome.data) == (FINDINGS, ""), words
        assert f"the pack '{pack}' is damaged" in outcome.messages
    outcome = modcache("verify", pack, "--json")
    assert outcome.status == FINDINGS
    assert outcome.json()["damage"] == 1
    (finding,) = outcome.json()["findings"]
    assert f"the pack '{pack}' is damaged" in finding["what"]
    assert not into.exists()


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
