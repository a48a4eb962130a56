# SPDX-License-Identifier: Apache-2.0
"""Whatever happened to the files: outputs stay right, a counter and one line say what happened."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import modcache
import pytest
import torch
from models import Encoder, frozen
from processes import Outcome, ProcessRunner

KEYS = [f"key-{index}" for index in range(40)]


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.jit.script(frozen(Encoder(size=64)))


def sample(key: str) -> torch.Tensor:
    return torch.full((2, 64), KEYS.index(key) / 7.0)


def look_up_all(keys: list[str] = KEYS) -> tuple[int, dict[str, int]]:
    """How many outputs are wrong (must be 0), and the counters."""
    module = encoder()
    modcache.reset_stats()
    outputs = {key: modcache.lookup_or_run(module, sample(key), key) for key in keys}
    modcache.flush()
    wrong = sum(not torch.equal(output, module(sample(key))) for key, output in outputs.items())
    return wrong, modcache.stats()


@pytest.fixture
def filled(cache_dir: Path, processes: ProcessRunner) -> Path:
    wrong, stats = processes.run(look_up_all).value
    assert (wrong, stats["stored"], stats["errors"]) == (0, len(KEYS), 0)
    return cache_dir


def segments_of(directory: Path) -> list[Path]:
    """Files that hold payloads: neither the database nor the control page."""
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and path.stat().st_size > 0 and "seg" in str(path.relative_to(directory))
    )


def database_of(directory: Path) -> Path:
    for path in directory.rglob("*"):
        if path.is_file() and path.read_bytes()[:15] == b"SQLite format 3":
            return path
    raise AssertionError("there is no database")


def remove_database(directory: Path) -> None:
    database = database_of(directory)
    for path in database.parent.glob(database.name + "*"):
        path.unlink()


def garbage_database(directory: Path) -> None:
    database = database_of(directory)
    remove_database(directory)
    database.write_bytes(os.urandom(20_000))


def garbage_inside_database(directory: Path) -> None:
    database = database_of(directory)
    data = bytearray(database.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 600] = os.urandom(600)
    database.write_bytes(bytes(data))


def empty_database(directory: Path) -> None:
    database = database_of(directory)
    remove_database(directory)
    database.touch()


def truncate_segment(directory: Path) -> None:
    segment = segments_of(directory)[0]
    os.truncate(segment, segment.stat().st_size // 2)


def empty_segment(directory: Path) -> None:
    os.truncate(segments_of(directory)[0], 0)


def remove_segments(directory: Path) -> None:
    for segment in segments_of(directory):
        segment.unlink()


def flip_bits(directory: Path) -> None:
    """Damages payloads all over the segment: every 512 bytes one bit."""
    for segment in segments_of(directory):
        data = bytearray(segment.read_bytes())
        for place in range(300, len(data), 512):
            data[place] ^= 1
        segment.write_bytes(bytes(data))


def garbage_segment(directory: Path) -> None:
    for segment in segments_of(directory):
        segment.write_bytes(os.urandom(segment.stat().st_size))


def remove_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def assert_sound(outcome: Outcome) -> dict[str, int]:
    wrong, stats = outcome.value
    assert outcome.exit_code == 0
    assert wrong == 0
    hits = stats["hits_disk"] + stats["hits_memory"]
    assert hits + stats["misses"] == len(KEYS)
    return stats


@pytest.mark.parametrize(
    "damage",
    [truncate_segment, empty_segment, flip_bits, garbage_segment, remove_segments],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_damaged_segments_are_misses_counted_and_logged_once(
    damage: Callable[[Path], None], io: str, filled: Path, processes: ProcessRunner
) -> None:
    damage(filled)
    outcome = processes.run(look_up_all, env={"MODCACHE_IO": io})
    stats = assert_sound(outcome)
    assert stats["misses"] > 0
    assert stats["corrupt"] + stats["errors"] > 0
    assert 1 <= len(outcome.log_lines) <= 2, outcome.stderr
    # What was run again was stored again.
    again = processes.run(look_up_all)
    stats = assert_sound(again)
    assert (stats["hits_disk"], stats["misses"], stats["corrupt"]) == (len(KEYS), 0, 0)
    assert again.log_lines == []


@pytest.mark.parametrize(
    "damage",
    [remove_database, empty_database, garbage_database, garbage_inside_database],
    ids=lambda damage: damage.__name__,
)
def test_a_lost_database_is_rebuilt_from_the_segments(
    damage: Callable[[Path], None], filled: Path, processes: ProcessRunner
) -> None:
    damage(filled)
    outcome = processes.run(look_up_all)
    stats = assert_sound(outcome)
    assert stats["hits_disk"] == len(KEYS), outcome.stderr
    assert len(outcome.log_lines) <= 2, outcome.stderr
    again = processes.run(look_up_all)
    assert assert_sound(again)["hits_disk"] == len(KEYS)
    assert again.log_lines == []


@pytest.mark.parametrize(
    "damage",
    [remove_database, garbage_database, truncate_segment, remove_segments, remove_directory],
    ids=lambda damage: damage.__name__,
)
def test_damage_under_a_process_that_uses_the_directory(
    damage: Callable[[Path], None], cache_dir: Path, processes: ProcessRunner
) -> None:
    wrong, stats = look_up_all()
    modcache.clear(tier="memory")
    if damage is truncate_segment:
        modcache.configure(io="pread")  # others truncate here: see README
        modcache.clear(tier="memory")
    damage(cache_dir)
    wrong, stats = look_up_all()
    assert wrong == 0
    assert stats["hits_disk"] + stats["hits_memory"] + stats["misses"] == len(KEYS)
    assert assert_sound(processes.run(look_up_all))["misses"] <= len(KEYS)
    assert assert_sound(processes.run(look_up_all))["hits_disk"] == len(KEYS)


def test_a_directory_that_vanished_comes_back(cache_dir: Path, processes: ProcessRunner) -> None:
    look_up_all(KEYS[:5])
    shutil.rmtree(cache_dir)
    modcache.clear(tier="memory")
    for _ in range(2):
        wrong, _ = look_up_all(KEYS[:10])
        assert wrong == 0
    # Whether the first or the second round reached the disk, nothing is lost for good.
    _, stats = processes.run(look_up_all, KEYS[:10]).value
    assert stats["hits_disk"] + stats["misses"] == 10
    assert cache_dir.is_dir()


def bytes_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_directory_of_a_newer_version_is_left_untouched(
    filled: Path, processes: ProcessRunner
) -> None:
    connection = sqlite3.connect(database_of(filled))
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = bytes_below(filled)
    outcome = processes.run(look_up_all)
    stats = assert_sound(outcome)
    assert stats["misses"] == len(KEYS)
    assert stats["errors"] > 0
    assert len(outcome.log_lines) == 1, outcome.stderr
    assert "newer" in outcome.log_lines[0] or "version" in outcome.log_lines[0]
    assert bytes_below(filled) == before


def drop_privileges() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def look_up_unprivileged() -> tuple[int, dict[str, int]]:
    encoder()  # what TorchScript reads while compiling may be root's alone
    drop_privileges()
    return look_up_all()


def make_readable(directory: Path, writable: bool) -> None:
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in directory.parents:
        if parent.owner() == directory.owner() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    if not writable:
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_read_only_directory_is_read(filled: Path, processes: ProcessRunner) -> None:
    make_readable(filled, writable=False)
    before = bytes_below(filled)
    outcome = processes.run(look_up_unprivileged)
    stats = assert_sound(outcome)
    assert stats["hits_disk"] == len(KEYS), outcome.stderr
    assert bytes_below(filled) == before
    make_readable(filled, writable=True)


def test_a_read_only_directory_takes_nothing_and_says_so_once(
    cache_dir: Path, processes: ProcessRunner
) -> None:
    cache_dir.mkdir()
    make_readable(cache_dir, writable=False)
    outcome = processes.run(look_up_unprivileged)
    stats = assert_sound(outcome)
    assert stats["misses"] == len(KEYS)
    assert len(outcome.log_lines) == 1, outcome.stderr
    assert list(cache_dir.iterdir()) == []


def test_a_directory_that_cannot_be_made(cache_dir: Path, processes: ProcessRunner) -> None:
    cache_dir.write_text("a file where the directory should be")
    outcome = processes.run(look_up_all)
    stats = assert_sound(outcome)
    assert stats["errors"] > 0
    assert len(outcome.log_lines) == 1, outcome.stderr
    assert cache_dir.read_text() == "a file where the directory should be"


def look_up_with_little_room() -> tuple[int, dict[str, int]]:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    module = encoder()
    modcache.lookup_or_run(module, sample(KEYS[0]), "first")
    modcache.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))  # further writes fail
    return look_up_all()


def test_writes_that_fail_cost_nothing_but_the_entries(processes: ProcessRunner) -> None:
    outcome = processes.run(look_up_with_little_room)
    stats = assert_sound(outcome)
    assert stats["errors"] > 0
    assert 1 <= len(outcome.log_lines) <= 3, outcome.stderr
    assert assert_sound(processes.run(look_up_all))["errors"] == 0
