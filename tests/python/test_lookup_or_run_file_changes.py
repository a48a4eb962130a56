# SPDX-License-Identifier: Apache-2.0
"""cache::lookup_or_run_file while the file changes, and what the directory keeps of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import modcache
import pytest
import torch
from file_opens import FileOpens
from lazy_models import X, by_file, rows_by_file, saved
from models import Encoder
from processes import ProcessRunner


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "encoder.pt"


# ----- a file that changes


def replace_by_rename(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".beside")
    beside.write_bytes(content)
    beside.rename(path)


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def overwrite_and_restore_its_time(path: Path, content: bytes) -> None:
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def rename_and_restore_its_time(path: Path, content: bytes) -> None:
    times = path.stat()
    replace_by_rename(path, content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [replace_by_rename, overwrite, overwrite_and_restore_its_time, rename_and_restore_its_time],
)
@pytest.mark.parametrize("is_loaded", [True, False])
def test_other_weights_of_the_same_size(
    path: Path, change: Callable[[Path, bytes], None], is_loaded: bool, processes: ProcessRunner
) -> None:
    other = saved(path, Encoder(), seed=1)
    content = path.read_bytes()
    first = saved(path, Encoder(), seed=2)
    assert len(content) == path.stat().st_size
    if is_loaded:
        assert torch.equal(by_file(path, X, "k"), first(X))
    else:
        processes.run(rows_by_file, str(path), ["k"], "")
        by_file(path, torch.ones(1, 4), ["k"])
    change(path, content)
    assert torch.equal(by_file(path, X, "k"), other(X))
    assert torch.equal(by_file(path, torch.ones(1, 4), ["k"]), other(torch.ones(1, 4)))
    assert torch.equal(by_file(path, X, "another key"), other(X))


def test_changes_that_follow_each_other_within_a_tick(path: Path) -> None:
    modules = [saved(path, Encoder(), seed) for seed in range(4)]
    contents = []
    for seed in range(4):
        saved(path, Encoder(), seed)
        contents.append(path.read_bytes())
    for turn in range(8):
        overwrite_and_restore_its_time(path, contents[turn % 4])
        assert torch.equal(by_file(path, X, "k"), modules[turn % 4](X))


def test_with_a_scope_a_replaced_file_runs_anew_but_hits_go_on(path: Path) -> None:
    first = saved(path, Encoder(), seed=1)
    by_file(path, X, "a", scope="encoder@1")
    other = saved(path, Encoder(), seed=2)
    assert torch.equal(by_file(path, X, "a", scope="encoder@1"), first(X))
    assert torch.equal(by_file(path, X, "b", scope="encoder@1"), other(X))


def test_a_file_that_is_gone(path: Path, processes: ProcessRunner) -> None:
    saved(path, Encoder())
    processes.run(rows_by_file, str(path), ["a"], "encoder@1")
    path.unlink()
    x = torch.ones(1, 4)
    assert by_file(path, x, ["a"], scope="encoder@1").shape == (1, 4)
    for scope, key in (("encoder@1", "b"), ("", "a")):
        with pytest.raises(RuntimeError, match=r"encoder.pt.*No such file.*torch.jit.script"):
            by_file(path, x, [key], scope=scope)


@pytest.mark.parametrize("scope", ["", "encoder@1"])
def test_off_opens_a_file_that_just_changed_for_nothing_but_loading(path: Path, scope: str) -> None:
    """Who it is would be told by its hash, which nobody needs there."""
    saved(path, Encoder())
    opens = FileOpens(path)
    torch.jit.load(path)
    to_load = opens.count_so_far()
    for seed in (1, 2):
        module = saved(path, Encoder(), seed)
        opens.close()
        opens = FileOpens(path)
        with modcache.mode("off"):
            assert torch.equal(by_file(path, X, "k", scope=scope), module(X))
        assert opens.count_so_far() == to_load
    assert torch.equal(by_file(path, X, "k", scope=scope), module(X))
    opens.close()


# ----- what is kept of the file


def damages(content: bytes) -> list[bytes]:
    flipped = [
        content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        for place in range(0, len(content), 7)
    ]
    return [b"", content[:-1], content + b"x", content[: len(content) // 2], *flipped]


def test_damaged_notes_are_no_notes(path: Path, cache_dir: Path, processes: ProcessRunner) -> None:
    module = saved(path, Encoder())
    by_file(path, X, "k")
    modcache.flush()
    notes = [
        note for note in (cache_dir / "notes").iterdir() if b"\nmanifest " not in note.read_bytes()
    ]
    notes = sorted(note for note in notes if b"\nscopes " not in note.read_bytes())
    assert len(notes) == 2
    kept = [note.read_bytes() for note in notes]
    assert any(str(path).encode() in note for note in kept)
    for note, content in zip(notes, kept, strict=True):
        for damage in damages(content)[::4]:
            note.write_bytes(damage)
            value, stats = processes.run(value_and_stats, str(path)).value
            assert value == module(X).tolist()
            assert (stats["hits_disk"], stats["errors"], stats["corrupt"]) == (1, 0, 0)
            assert note.read_bytes() == content  # it was kept anew


def value_and_stats(path: str) -> tuple[list[float], dict[str, int]]:
    return by_file(Path(path), X, "k").tolist(), modcache.stats()


def test_a_mode_that_may_not_write_keeps_no_notes(
    path: Path, cache_dir: Path, processes: ProcessRunner
) -> None:
    module = saved(path, Encoder())
    by_file(path, X, "k")
    modcache.flush()
    modcache.configure(dir=cache_dir.parent / "elsewhere")
    names = sorted((cache_dir / "notes").iterdir())
    for name in names:
        name.unlink()
    value, _ = processes.run(value_and_stats, str(path), env={"MODCACHE_MODE": "read"}).value
    assert value == module(X).tolist()
    assert list((cache_dir / "notes").iterdir()) == []
