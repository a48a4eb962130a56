# SPDX-License-Identifier: Apache-2.0
"""clear, mode and verify --fix: what they change, and what running processes see of it."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from program import FINDINGS, MISUSE, SUCCESS, FillDirectory, Outcome, bytes_below

Program = Callable[..., Outcome]


def keys_of(modcache: Program, directory: Path) -> list[str]:
    entries = modcache("ls", directory, "--json").json()["entries"]
    return [f"{entry['scope']} {entry['key']}" for entry in entries]


@pytest.fixture
def busy(directory: Path, writer: FillDirectory) -> Path:
    """With a process that has it open."""
    for scope in ("a", "b"):
        for key in ("train/1", "train/2", "val/1"):
            writer.put(scope=scope, key=key)
    writer.flush()
    return directory


def test_clear_removes_everything(modcache: Program, busy: Path) -> None:
    outcome = modcache("clear", busy, "--json")
    assert outcome.status == SUCCESS
    assert outcome.json()["removed"] == 6
    assert keys_of(modcache, busy) == []
    assert modcache("clear", busy, "--json").json()["removed"] == 0


def test_clear_narrows_by_all_that_is_given(modcache: Program, busy: Path) -> None:
    outcome = modcache("clear", busy, "--scope", "a", "--prefix", "train/")
    assert outcome.status == SUCCESS
    assert "entries removed   2" in outcome.data
    assert keys_of(modcache, busy) == ["a val/1", "b train/1", "b train/2", "b val/1"]
    assert modcache("clear", busy, "--prefix", "val/", "--json").json()["removed"] == 2
    assert modcache("clear", busy, "--scope", "b", "--json").json()["removed"] == 2


def test_clear_of_one_namespace(modcache: Program, busy: Path, writer: FillDirectory) -> None:
    for name in ("team a", "team b"):
        writer.put(scope="a", key="train/1", namespace=name)
    writer.flush()

    def removed(*options: str) -> int:
        return int(modcache("clear", busy, *options, "--json").json()["removed"])

    assert removed("--namespace", "nobody") == 0
    assert removed("--namespace", "team a", "--scope", "a") == 1
    assert removed("--namespace", "", "--scope", "a") == 3
    assert removed("--scope", "a") == 1
    assert removed("--namespace", "") == 3


def test_a_clear_of_everything_removes_notes_too(
    modcache: Program, busy: Path, writer: FillDirectory
) -> None:
    writer.keep_manifest("a")
    assert modcache("clear", busy, "--scope", "a").status == SUCCESS
    assert list((busy / "notes").iterdir()) != []
    assert modcache("clear", busy).status == SUCCESS
    assert list((busy / "notes").iterdir()) == []


def test_a_scope_is_cleared_by_its_whole_name_only(
    modcache: Program, busy: Path, writer: FillDirectory
) -> None:
    writer.put(scope="ab", key="train/1")
    writer.flush()
    assert modcache("clear", busy, "--scope", "a", "--json").json()["removed"] == 3
    assert keys_of(modcache, busy) == ["b train/1", "b train/2", "b val/1", "ab train/1"]


def test_a_scope_that_is_not_there_is_a_finding(
    modcache: Program, busy: Path, writer: FillDirectory
) -> None:
    writer.keep_manifest("on record", **{"class": "models.Encoder"})
    for given in ("no such", "tr"):
        outcome = modcache("clear", busy, "--scope", given, "--json")
        assert outcome.status == FINDINGS
        assert json.loads(outcome.data)["removed"] == 0
        assert f"there is no scope '{given}'" in outcome.messages
    assert modcache("clear", busy, "--scope", "on record").status == SUCCESS
    assert modcache("clear", busy, "--scope", "a", "--prefix", "none").status == SUCCESS
    assert len(keys_of(modcache, busy)) == 6


def test_clear_by_age(modcache: Program, busy: Path) -> None:
    assert modcache("clear", busy, "--older-than", "1h", "--json").json()["removed"] == 0
    assert modcache("clear", busy, "--older-than", "0", "--scope", "a").status == SUCCESS
    assert keys_of(modcache, busy) == ["b train/1", "b train/2", "b val/1"]


def test_an_age_that_is_none_is_misuse(modcache: Program, busy: Path) -> None:
    outcome = modcache("clear", busy, "--older-than", "a while")
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "36h or 30d" in outcome.messages
    assert len(keys_of(modcache, busy)) == 6


def test_evict_makes_it_smaller(modcache: Program, directory: Path, writer: FillDirectory) -> None:
    writer.put(key="k", count=100, shape=[25_000])
    writer.flush()
    writer.leave()
    outcome = modcache("evict", directory, "--to", "5MB", "--json")
    assert outcome.status == SUCCESS
    said = outcome.json()
    assert said["disk_bytes_before"] > 10_000_000
    assert said["disk_bytes"] <= 5_000_000
    left = modcache("stats", directory, "--json").json()
    assert left["disk_bytes"] == said["disk_bytes"]
    assert left["entries"] + said["evicted"] == 100
    assert modcache("verify", directory).status == SUCCESS


def test_evict_takes_what_an_idle_process_has_open(modcache: Program, busy: Path) -> None:
    assert modcache("evict", busy, "--to", "0").status == SUCCESS
    assert keys_of(modcache, busy) == []


def test_evict_says_that_a_process_keeps_its_segment(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    writer.put(key="k", count=4, shape=[25_000])
    writer.flush()
    writer.leave()
    (segment,) = (directory / "segments").glob("*.seg")
    with segment.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a process that does not answer requests would
        outcome = modcache("evict", directory, "--to", "0")
    assert outcome.status == FINDINGS
    assert "keeps a segment open to write to" in outcome.messages
    assert len(keys_of(modcache, directory)) == 4


@pytest.mark.parametrize("policy", ["auto", "lru"])
def test_evict_takes_what_was_used_longest_ago(
    modcache: Program,
    directory: Path,
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("MODCACHE_POLICY", policy)
    writer: FillDirectory = request.getfixturevalue("writer")
    writer.put(key="hot", count=10, shape=[25_000])
    writer.put(key="cold", count=90, shape=[25_000])
    writer.flush()
    writer.find(key="cold", count=90)
    writer.find(key="hot", count=10)
    writer.leave()
    assert modcache("evict", directory, "--to", "5MB").status == SUCCESS
    left = [entry["key"] for entry in modcache("ls", directory, "--json").json()["entries"]]
    assert {f"hot{i}" for i in range(10)} <= set(left)
    assert 20 <= len(left) <= 50, "half of what was to stay stays"


@pytest.mark.parametrize("options", [[], ["--to"], ["--to", "much"], ["--to", "-1"]])
def test_evict_needs_a_size(modcache: Program, busy: Path, options: list[str]) -> None:
    outcome = modcache("evict", busy, *options)
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert "--to" in outcome.messages
    assert len(keys_of(modcache, busy)) == 6


def test_the_mode_stays_until_it_is_changed(modcache: Program, busy: Path) -> None:
    assert modcache("mode", busy).data == "on\n"
    for mode in ("off", "read", "on"):
        assert modcache("mode", mode, busy).data == f"{mode}\n"
        assert modcache("mode", busy).data == f"{mode}\n"
        said = {"directory": str(busy), "mode": mode}
        assert modcache("mode", busy, "--json").json() == said
        assert modcache("stats", busy, "--json").json()["mode"] == mode


def test_asking_for_the_mode_changes_no_byte(modcache: Program, filled: Path) -> None:
    before = bytes_below(filled)
    assert modcache("mode", filled).status == SUCCESS
    assert bytes_below(filled) == before


def test_the_mode_of_the_default_directory(
    modcache: Program, busy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCACHE_DIR", str(busy))
    assert modcache("mode", "off").data == "off\n"
    assert modcache("mode").data == "off\n"


def damage_payload(modcache: Program, directory: Path, key: str) -> None:
    entry = modcache("show", directory, key, "--json").json()["entries"][0]
    segment = directory / "segments" / f"{entry['segment']}.seg"
    data = bytearray(segment.read_bytes())
    data[entry["offset"] + 512] ^= 1
    segment.write_bytes(data)


def test_verify_of_a_whole_directory(modcache: Program, filled: Path) -> None:
    before = bytes_below(filled)
    found = modcache("verify", filled, "--json")
    assert found.status == SUCCESS
    assert (found.json()["entries"], found.json()["whole_entries"]) == (7, 7)
    assert found.json()["damage"] == 0
    assert "no damage" in modcache("verify", filled).data
    assert bytes_below(filled) == before


def test_verify_while_another_process_stores(
    modcache: Program, busy: Path, writer: FillDirectory
) -> None:
    stored = 0
    is_over = threading.Event()

    def store() -> None:
        nonlocal stored
        while not is_over.is_set():
            writer.put(scope="c", key=f"{stored % 50}", shape=[1000])
            stored += 1

    thread = threading.Thread(target=store)
    thread.start()
    try:
        beside_stores = 0
        for _ in range(100):  # the thread that stores may get no turn during one
            before = stored
            outcome = modcache("verify", busy)
            assert outcome.status == SUCCESS, outcome
            beside_stores += stored > before
            if beside_stores == 5:
                break
        assert beside_stores == 5, "it went on meanwhile"
    finally:
        is_over.set()
        thread.join()


def test_verify_finds_damage_and_fix_mends_it(modcache: Program, filled: Path) -> None:
    damage_payload(modcache, filled, "key-3")
    before = bytes_below(filled)
    outcome = modcache("verify", filled, "--json")
    assert outcome.status == FINDINGS
    (finding,) = outcome.json()["findings"]
    assert (finding["key"], finding["is_damage"]) == ("key-3", True)
    assert "key-3" in modcache("verify", filled).data
    assert bytes_below(filled) == before

    outcome = modcache("verify", filled, "--fix", "--json")
    assert outcome.status == FINDINGS, "what was damaged is told, also where it was repaired"
    assert outcome.json()["dropped"] == 1
    assert outcome.json()["remaining_damage"] == 0
    assert modcache("verify", filled).status == SUCCESS
    assert modcache("show", filled, "key-3").status == FINDINGS
    assert modcache("verify", filled, "--fix").status == SUCCESS


def test_fix_makes_a_database_from_the_segments(modcache: Program, filled: Path) -> None:
    (filled / "index.sqlite").write_bytes(b"no database")
    assert modcache("verify", filled).status == FINDINGS
    assert modcache("verify", filled, "--fix").status == FINDINGS
    assert modcache("verify", filled).status == SUCCESS
    assert len(keys_of(modcache, filled)) == 7


def test_an_entry_whose_value_is_none_of_ours_is_damage(
    modcache: Program, directory: Path, writer: FillDirectory
) -> None:
    writer.put(key="k", header="no header")
    writer.flush()
    writer.leave()
    assert modcache("verify", directory).status == FINDINGS
