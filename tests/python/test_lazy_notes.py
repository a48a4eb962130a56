# SPDX-License-Identifier: Apache-2.0
"""What is noted of a file's module, so that later processes need not load it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from file_opens import FileOpens
from lazy_models import Counting, X, ask_by_file, ask_lazy, by_file, of_two_methods
from models import frozen
from processes import ProcessRunner


@pytest.fixture
def path(tmp_path: Path) -> Path:
    of_two_methods(tmp_path / "encoder.pt")
    return tmp_path / "encoder.pt"


# ----- cache::lookup_or_run_file


def a_second_method(path: Path) -> None:
    by_file(path, X, "k")
    by_file(path, X, "k", method="negated")


def first_with_a_scope(path: Path) -> None:
    by_file(path, X, "k", scope="encoder@1")
    by_file(path, X, "k")
    by_file(path, X, "k", method="negated")


def first_while_off(path: Path) -> None:
    with modcache.mode("off"):
        by_file(path, X, "k")
    a_second_method(path)


def first_by_reading(path: Path) -> None:
    with modcache.mode("read"):
        a_second_method(path)
    a_second_method(path)


@pytest.mark.parametrize(
    "call", [a_second_method, first_with_a_scope, first_while_off, first_by_reading]
)
def test_a_later_process_does_not_open_the_file(
    call: Callable[[Path], None], path: Path, processes: ProcessRunner
) -> None:
    call(path)
    modcache.flush()
    opens = FileOpens(path)
    stats = processes.run(ask_by_file, str(path), "forward", "negated").value
    assert (stats["hits_disk"], stats["misses"]) == (2, 0)
    assert not opens.any_so_far()
    opens.close()


def test_what_a_run_made_of_the_module_is_not_noted(path: Path, processes: ProcessRunner) -> None:
    """The file still holds the module before any run."""
    torch.jit.script(frozen(Counting())).save(str(path))
    by_file(path, X, "k")
    assert torch.equal(by_file(path, X, "k", method="counted"), X)
    modcache.flush()
    assert processes.run(values_of_counted, str(path)).value == (X * 0).tolist()


def values_of_counted(path: str) -> list[float]:
    return by_file(Path(path), X, "k", method="counted").tolist()


def test_a_clear_of_everything_removes_what_is_noted(path: Path, cache_dir: Path) -> None:
    by_file(path, X, "k")
    modcache.flush()
    assert list((cache_dir / "notes").iterdir())
    torch.ops.cache.clear("another scope")
    assert list((cache_dir / "notes").iterdir())
    torch.ops.cache.clear()
    assert not list((cache_dir / "notes").iterdir())


# ----- modcache.lazy


def lazily_a_second_method(lazy: modcache.Lazy) -> None:
    modcache.lookup_or_run(lazy, X, "k")
    modcache.lookup_or_run(lazy, X, "k", method="negated")


def lazily_first_with_a_scope(lazy: modcache.Lazy) -> None:
    modcache.lookup_or_run(lazy, X, "k", scope="encoder@1")
    lazily_a_second_method(lazy)


def lazily_after_a_call_of_the_module(lazy: modcache.Lazy) -> None:
    lazy(X)
    lazily_a_second_method(lazy)


def lazily_first_while_off(lazy: modcache.Lazy) -> None:
    with modcache.mode("off"):
        modcache.lookup_or_run(lazy, X, "k")
    lazily_a_second_method(lazy)


def lazily_first_by_reading(lazy: modcache.Lazy) -> None:
    with modcache.mode("read"):
        lazily_a_second_method(lazy)
    lazily_a_second_method(lazy)


@pytest.mark.parametrize(
    "call",
    [
        lazily_a_second_method,
        lazily_first_with_a_scope,
        lazily_after_a_call_of_the_module,
        lazily_first_while_off,
        lazily_first_by_reading,
    ],
)
def test_a_later_process_does_not_load_it(
    call: Callable[[modcache.Lazy], None], path: Path, processes: ProcessRunner
) -> None:
    call(modcache.lazy(path))
    modcache.flush()
    assert processes.run(ask_lazy, str(path), "forward", "negated").value is False


def run(lazy: modcache.Lazy) -> None:
    lazy(X)


def write(lazy: modcache.Lazy) -> None:
    next(lazy.load().buffers()).data.add_(1)  # leaves no trace that could be relied on


@pytest.mark.parametrize("change", [run, write])
def test_a_module_that_was_written_to_is_not_noted(
    change: Callable[[modcache.Lazy], None], path: Path, processes: ProcessRunner
) -> None:
    torch.jit.script(frozen(Counting())).save(str(path))
    lazy = modcache.lazy(path)
    change(lazy)
    assert torch.equal(modcache.lookup_or_run(lazy, X, "k", method="counted"), X)
    modcache.flush()
    assert processes.run(values_of_counted, str(path)).value == (X * 0).tolist()


def test_one_that_was_cast_since_is_not_noted(path: Path) -> None:
    lazy = modcache.lazy(path)
    lazy(X)
    lazy.half().float()  # rounds
    modcache.lookup_or_run(lazy, X, "k")
    other = modcache.lazy(path)
    assert torch.equal(modcache.lookup_or_run(other, X, "k"), other(X))


# ----- who asks for the scope alone


def test_fingerprint_prefetch_and_place_load_nothing_that_is_noted(path: Path) -> None:
    lazily_a_second_method(modcache.lazy(path))
    lazy = modcache.lazy(path)
    assert modcache.fingerprint(lazy) == modcache.fingerprint(torch.jit.load(path))
    for method in ("forward", "negated"):
        assert modcache.prefetch(lazy, ["k", "l"], method=method) == 1
        modcache.place(lazy, "host", method=method)
    assert not lazy.loaded


def test_fingerprint_notes_what_it_had_to_load_for(path: Path) -> None:
    modcache.fingerprint(modcache.lazy(path), method="negated")
    lazy = modcache.lazy(path)
    modcache.fingerprint(lazy, method="negated")
    assert not lazy.loaded


def test_prefetch_and_place_take_a_lazy_module_s_own_scope(path: Path) -> None:
    def must_not_load() -> torch.nn.Module:
        raise AssertionError("the module was loaded")

    modcache.lookup_or_run(modcache.lazy(path, scope="encoder@1"), X, "k")
    for lazy in (
        modcache.lazy(path, scope="encoder@1"),
        modcache.lazy(must_not_load, scope="encoder@1"),
    ):
        assert modcache.prefetch(lazy, "k") == 1
        modcache.place(lazy, "host")
        assert not lazy.loaded


def test_what_was_written_to_an_unloaded_module_is_gone(path: Path, counted: Any) -> None:
    lazy = modcache.lazy(path)
    first = modcache.lookup_or_run(lazy, X, ["a", "b"])
    with torch.no_grad():
        next(lazy.load().parameters()).add_(1)
    assert not torch.equal(modcache.lookup_or_run(lazy, X, ["a", "b"]), first)
    counted()
    lazy.unload()
    assert torch.equal(modcache.lookup_or_run(lazy, X, ["a", "b"]), first)
    assert not lazy.loaded
    assert torch.equal(modcache.lookup_or_run(lazy, X * 2, ["c", "d"]), lazy(X * 2))
    assert counted() == {"hits_memory": 2, "misses": 2, "stored": 2}
