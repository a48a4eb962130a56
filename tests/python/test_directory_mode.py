# SPDX-License-Identifier: Apache-2.0
"""The mode of a directory, set from outside: every road to the cache obeys it at its next call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from directory_modes import set_directory_mode
from file_opens import FileOpens
from lazy_models import by_file, saved
from lowered_models import lowered
from models import FACES, Encoder, Outer, frozen, in_form
from processes import ProcessRunner, hear, tell
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
KEYS = ["a", "b"]
IDS = torch.tensor([3, 4])

# ----- each form of call


def by_face(face: str, key: Any) -> Callable[[Path], Callable[[], Any]]:
    def road(_: Path) -> Callable[[], Any]:
        module = in_form(frozen(Encoder()), face)
        return lambda: modcache.lookup_or_run(module, X, key)

    return road


def any_road(_: Path) -> Callable[[], Any]:
    module = torch.jit.script(frozen(Encoder()))
    return lambda: torch.ops.cache.lookup_or_run_any(module, X, KEYS)


def file_road(tmp_path: Path) -> Callable[[], Any]:
    path = tmp_path / "encoder.pt"
    saved(path, Encoder())
    return lambda: by_file(path, X, "k")


def lazy_road(tmp_path: Path) -> Callable[[], Any]:
    path = tmp_path / "encoder.pt"
    saved(path, Encoder())
    module = modcache.lazy(path)
    return lambda: modcache.lookup_or_run(module, X, KEYS)


def lowered_road(_: Path) -> Callable[[], Any]:
    model = lowered(torch.jit.script(frozen(Outer(Encoder()))))
    return lambda: model(X, "k")


def frozen_road(_: Path) -> Callable[[], Any]:
    model = modcache.freeze(torch.jit.script(frozen(Outer(Encoder()))))
    return lambda: model(X, "k")


class ByIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = frozen(Encoder())

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids, scope="encoder@1")


def exported_road(_: Path) -> Callable[[], Any]:
    with torch.no_grad():
        program = torch.export.export(frozen(ByIds()), (X, IDS)).module()
    return lambda: program(X, IDS)


def cached_road(_: Path) -> Callable[[], Any]:
    module = modcache.cached(frozen(Encoder()), key="content")
    return lambda: module(X)


def store_and_lookup(_: Path) -> Callable[[], Any]:
    def call() -> None:
        torch.ops.cache.lookup("s", "k")
        torch.ops.cache.store("s", "k", X)
        torch.ops.cache.contains("s", "k")
        torch.ops.cache.prefetch("s", ["k"])

    return call


def dataset_road(_: Path) -> Callable[[], Any]:
    samples = modcache.CachedDataset([X, X + 1], scope="samples@1")
    return lambda: (samples[0], samples.__getitems__([0, 1]))


ROADS = {
    **{f"{face}, one key": by_face(face, "k") for face in FACES},
    "eager, rows": by_face("eager", KEYS),
    "scripted, ids": by_face("scripted", IDS),
    "any": any_road,
    "file": file_road,
    "lazy": lazy_road,
    "lowered": lowered_road,
    "frozen": frozen_road,
    "exported": exported_road,
    "cached": cached_road,
    "store and lookup": store_and_lookup,
    "dataset": dataset_road,
}


@pytest.mark.parametrize("road", ROADS)
def test_off_stores_and_finds_nothing_and_opens_nothing_but_the_page(
    road: str, cache_dir: Path, tmp_path: Path, counted: Any
) -> None:
    set_directory_mode(cache_dir, "off")
    call = ROADS[road](tmp_path)
    counted()
    call()
    call()
    modcache.flush()
    assert set(counted()) <= {"bypassed_off"}
    assert modcache.stats()["entries_memory"] == 0
    assert [path.name for path in cache_dir.iterdir()] == ["control"]
    set_directory_mode(cache_dir, "on")
    call()
    assert counted()["stored"] >= 1


@pytest.mark.parametrize("road", ROADS)
def test_the_next_call_sees_it_whatever_was_found_before(
    road: str, cache_dir: Path, tmp_path: Path, counted: Any
) -> None:
    call = ROADS[road](tmp_path)
    call()
    call()
    modcache.flush()
    counted()
    set_directory_mode(cache_dir, "off")
    call()
    assert set(counted()) <= {"bypassed_off"}
    set_directory_mode(cache_dir, "read")
    call()
    found = counted()
    assert "stored" not in found
    assert any(name.startswith("hits") for name in found), found
    set_directory_mode(cache_dir, "on")
    call()
    assert any(name.startswith("hits") for name in counted())


def test_a_fill_that_could_store_nothing_says_so(cache_dir: Path) -> None:
    set_directory_mode(cache_dir, "read")
    skipped = modcache.fill(frozen(Encoder()), [(X, IDS)], key=lambda batch: batch[1])
    assert skipped.rows == 0
    assert skipped.skipped.startswith("the mode of the directory is 'read' ('modcache mode on ")
    set_directory_mode(cache_dir, "on")
    summary = modcache.fill(
        frozen(Encoder()), [(X, IDS)], key=lambda batch: batch[1], progress=False
    )
    assert summary.rows == 2


# ----- what shows


def test_levels_combine_and_mode_names_what_is_left(cache_dir: Path) -> None:
    set_directory_mode(cache_dir, "read")
    assert modcache.mode() == "read"
    assert modcache.settings()["mode"] == "on"
    with modcache.mode("verify"):
        assert modcache.mode() == "verify"
    modcache.set_mode("refresh")
    assert modcache.mode() == "off"


def test_explain_names_the_directory(cache_dir: Path) -> None:
    module = frozen(Encoder())
    set_directory_mode(cache_dir, "off")
    found = modcache.explain(module, X, "k")
    assert found.status == "bypassed"
    assert "the mode of the directory is 'off'" in found.reason
    assert f"modcache mode on {cache_dir}" in found.reason
    set_directory_mode(cache_dir, "read")
    with modcache.mode("refresh"):
        reason = modcache.explain(module, X, "k").reason
    assert "process ('on'), thread ('refresh') and directory ('read')" in reason


def test_another_directory_has_a_mode_of_its_own(cache_dir: Path, tmp_path: Path) -> None:
    set_directory_mode(cache_dir, "off")
    assert modcache.mode() == "off"
    modcache.configure(dir=tmp_path / "other")
    assert modcache.mode() == "on"
    set_directory_mode(tmp_path / "other", "read")
    assert modcache.mode() == "read"
    modcache.configure(dir=cache_dir)
    assert modcache.mode() == "off"


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_every_thread_sees_it(cache_dir: Path, io: str) -> None:
    modcache.configure(io=io)
    seen = []
    for mode in ("off", "read", "on"):
        set_directory_mode(cache_dir, mode)
        thread = threading.Thread(target=lambda: seen.append(modcache.mode()))
        thread.start()
        thread.join()
    assert seen == ["off", "read", "on"]


def test_what_is_no_mode_is_on_and_said_once(processes: ProcessRunner, cache_dir: Path) -> None:
    set_directory_mode(cache_dir, "off")
    with (cache_dir / "control").open("r+b") as page:
        page.seek(320)
        page.write(b"\x07")
    outcome = processes.run(two_modes)
    assert outcome.value == ["on", "on"]
    (line,) = outcome.log_lines
    assert "a mode that is none" in line


def two_modes() -> list[str]:
    return [modcache.mode(), modcache.mode()]


# ----- other processes


def calls_in_a_loop(io: str) -> None:
    """Says after each call what it did, until it is told to end."""
    modcache.configure(io=io)
    module = torch.jit.script(frozen(Encoder()))
    last: dict[str, int] = modcache.stats()
    while hear():
        modcache.lookup_or_run(module, X, "k")
        modcache.lookup_or_run(module, X, KEYS)
        now = modcache.stats()
        did = {
            name
            for name in ("bypassed_off", "hits_memory", "hits_disk", "misses", "stored")
            if now[name] != last[name]
        }
        last = now
        tell((modcache.mode(), sorted(did)))


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_process_in_a_loop_sees_off_and_on_at_its_next_call(
    processes: ProcessRunner, cache_dir: Path, io: str
) -> None:
    child = processes.start(calls_in_a_loop, io)

    def next_call() -> Any:
        child.send(True)
        return child.receive()

    assert next_call() == ("on", ["misses", "stored"])
    for _ in range(5):
        set_directory_mode(cache_dir, "off")
        assert next_call() == ("off", ["bypassed_off"])
        set_directory_mode(cache_dir, "on")
        mode, did = next_call()
        assert mode == "on"
        assert not {"bypassed_off", "misses"} & set(did)
    child.send(False)
    assert child.wait().exit_code == 0


def test_off_keeps_a_database_closed_that_is_there(
    cache_dir: Path, processes: ProcessRunner
) -> None:
    modcache.lookup_or_run(frozen(Encoder()), X, "k")
    modcache.flush()
    set_directory_mode(cache_dir, "off")
    modcache.configure(dir=cache_dir.parent / "elsewhere")
    there = [path for path in cache_dir.rglob("*") if path.name != "control"]
    watched = [FileOpens(path) for path in there]
    assert processes.run(two_calls).value == 2
    assert not any(watch.any_so_far() for watch in watched)
    for watch in watched:
        watch.close()


def two_calls() -> int:
    module = frozen(Encoder())
    modcache.lookup_or_run(module, X, "k")
    modcache.lookup_or_run(module, X, "k")
    modcache.flush()
    return modcache.stats()["bypassed_off"]
