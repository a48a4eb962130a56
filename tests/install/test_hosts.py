# SPDX-License-Identifier: Apache-2.0
"""libmodcache.so in hosts of all kinds. torch_host/main.cpp has the steps that a host can do."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from installed import VALUE, lines, run

# --- How the library comes into a process ----------------------------------------------------


def test_a_host_that_links_the_target(hosts: Path, model: Path, cache: Path) -> None:
    steps = ("is-loaded", "load", model, "run", "a", "run", "a", "stat", "hits_memory")
    assert lines(hosts / "linked_host", *steps, cache=cache) == ["yes", "loaded", VALUE, VALUE, "1"]


def test_a_host_that_opens_the_library_for_itself_alone(
    hosts: Path, model: Path, library: Path, cache: Path
) -> None:
    steps = ("is-loaded", "open", library, "is-loaded", "load", model, "run", "a", "stat", "stored")
    printed = lines(hosts / "plain_host", *steps, cache=cache)
    assert printed == ["no", "opened", "yes", "loaded", VALUE, "1"]


def test_a_host_that_knows_nothing_of_it(
    hosts: Path, model: Path, library: Path, cache: Path, tmp_path: Path
) -> None:
    preload = tmp_path / "libmodcache.so"  # in LD_PRELOAD a space would end the path
    preload.symlink_to(library)
    steps = ("load", model, "run", "a")
    for _ in range(2):
        printed = lines(hosts / "plain_host", *steps, cache=cache, LD_PRELOAD=str(preload))
        assert printed == ["loaded", VALUE]
    hits = (*steps, "stat", "hits_disk", "stat", "misses")
    printed = lines(hosts / "plain_host", *hits, cache=cache, LD_PRELOAD=str(preload))
    assert printed == ["loaded", VALUE, "1", "0"]


def test_without_the_library_the_error_says_how_to_load_it(hosts: Path, cache: Path) -> None:
    no_stats, no_guard = lines(
        hosts / "plain_host", "stat", "misses", "under", "off", "a", cache=cache
    )
    assert no_stats.startswith(
        "error: modcache: cache::stats was called, but libmodcache.so is not"
    )
    for way in ("modcache::modcache", "dlopen(", "LD_PRELOAD="):
        assert way in no_stats
    assert no_guard.startswith("error: modcache: cache::_enter_mode was called")


def test_what_failed_before_the_library_was_loaded_works_after(
    hosts: Path, library: Path, cache: Path
) -> None:
    steps = ("mode", "open", library, "mode")
    failed, *rest = lines(hosts / "plain_host", *steps, cache=cache)
    assert failed.startswith("error: ")
    assert rest == ["opened", "on"]


def test_closing_it_is_harmless(hosts: Path, model: Path, library: Path, cache: Path) -> None:
    steps = ("open", library, "load", model, "run", "a", "close", "run", "a", "run", "b")
    printed = lines(hosts / "plain_host", *steps, "stat", "hits_memory", cache=cache)
    assert printed == ["opened", "loaded", VALUE, "closed", VALUE, VALUE, "1"]
    again = ("open", library, "close", "open", library, "load", model, "run", "b", "close")
    printed = lines(hosts / "plain_host", *again, "stat", "hits_disk", cache=cache)
    assert printed == ["opened", "closed", "opened", "loaded", VALUE, "closed", "1"]


def test_a_second_copy_says_so_and_the_first_goes_on(
    hosts: Path, model: Path, library: Path, cache: Path, tmp_path: Path
) -> None:
    copy = shutil.copy(library, tmp_path / "libcopy.so")
    steps = ("load", model, "run", "a", "open", copy, "run", "a", "run", "b", "close", "run", "b")
    result = run(hosts / "linked_host", *steps, "stat", "hits_memory", MODCACHE_DIR=str(cache))
    values = [VALUE, "opened", VALUE, VALUE, "closed", VALUE]
    assert (result.returncode, result.stdout.splitlines()) == (0, ["loaded", *values, "2"])
    (message,) = result.stderr.splitlines()
    assert message.startswith("modcache: error: another copy of libmodcache.so is loaded")
    assert f"'{copy}' stays unused" in message


# --- The C++ face ----------------------------------------------------------------------------


def test_the_three_forms_of_keys_reach_the_same_entries(
    hosts: Path, model: Path, cache: Path
) -> None:
    both = f"{VALUE} {VALUE}"
    steps = ("load", model, "rows", "7", "8", "ids", "8", "7", "stat", "stored", "stat", "misses")
    assert lines(hosts / "linked_host", *steps, cache=cache) == ["loaded", both, both, "2", "2"]
    whole = ("load", model, "one", "7", "run", "7", "stat", "hits_memory", "stat", "stored")
    assert lines(hosts / "linked_host", *whole, cache=cache) == ["loaded", VALUE, VALUE, "1", "1"]


def test_a_mask_is_given_with_the_options(hosts: Path, model: Path, cache: Path) -> None:
    both = f"{VALUE} {VALUE}"
    steps = ("load", model, "masked", "7", "8", "masked", "8", "7", "stat", "stored")
    assert lines(hosts / "linked_host", *steps, cache=cache) == ["loaded", both, both, "2"]


def test_caches_of_the_hosts_own(hosts: Path, model: Path, cache: Path, tmp_path: Path) -> None:
    make = ["cache", "dir", str(tmp_path / "a"), "cache", "dir", str(tmp_path / "b")]
    calls = ["enter", "0", "one", "k", "enter", "1", "one", "k", "in-a-thread", "k", "run", "k"]
    counts = ["stat", "misses", "leave", "stat", "misses", "leave", "stat", "misses"]
    printed = lines(hosts / "linked_host", "load", model, *make, *calls, *counts, cache=cache)
    # b: `one` and `run`, which share an entry; a: `one`; the default: the thread.
    assert printed[-5:] == ["1", "left", "1", "left", "1"]
    assert printed.count(VALUE) == 4


def test_a_guard_keeps_its_cache(hosts: Path, model: Path, cache: Path, tmp_path: Path) -> None:
    steps = ["load", str(model), "cache", "dir", str(tmp_path / "a"), "enter", "0", "forget-caches"]
    more = ["one", "k", "stat", "misses", "setting", "dir"]
    printed = lines(hosts / "linked_host", *steps, *more, cache=cache)
    assert printed[-2:] == ["1", str(tmp_path / "a")]


def test_a_cache_with_a_wrong_option(hosts: Path, cache: Path) -> None:
    (printed,) = lines(hosts / "linked_host", "cache", "memory", "much", cache=cache)
    assert printed.startswith("error: modcache")
    assert "memory" in printed


def test_a_scope_and_what_is_stored_under_it(hosts: Path, model: Path, cache: Path) -> None:
    steps = ("load", model, "contains", "s@1", "a", "scoped", "s@1", "a", "contains", "s@1", "a")
    printed = lines(
        hosts / "linked_host", *steps, "flush", "clear", "contains", "s@1", "a", cache=cache
    )
    assert printed == ["loaded", "no", VALUE, "yes", "flushed", "1", "no"]


def test_modes_and_guards(hosts: Path, model: Path, cache: Path) -> None:
    steps = ("load", model, "under", "off", "a", "stat", "misses", "mode", "set-mode", "read")
    more = ("under", "on", "a", "stat", "stored", "under", "no", "a", "mode")
    printed = lines(hosts / "linked_host", *steps, *more, cache=cache)
    assert printed[:-2] == ["loaded", f"off: {VALUE}", "0", "on", "set", f"read: {VALUE}", "0"]
    assert "off, read, on, refresh, verify" in printed[-2].replace("'", "")
    assert printed[-1] == "read"


def test_settings_counters_and_the_fingerprint(hosts: Path, model: Path, cache: Path) -> None:
    steps = ("configure", "min_run_us", "9", "setting", "min_run_us", "configure", "memry", "1")
    printed = lines(hosts / "linked_host", *steps, "setting", "dir", cache=cache)
    assert printed[:2] == ["configured", "9"]
    assert "unknown option 'memry'; valid options are: dir, mode, memory" in printed[2]
    assert printed[3] == str(cache)
    twice = ("fingerprint", "fingerprint")
    again = ("load", model, "run", "a", "reset", "stat", "misses", *twice)
    loaded, value, *rest, first, second = lines(hosts / "linked_host", *again, cache=cache)
    assert (loaded, value, rest) == ("loaded", VALUE, ["reset", "0"])
    assert first == second != ""


# --- Libraries that the host has of its own --------------------------------------------------


@pytest.mark.parametrize("host", ["linked_host", "plain_host"])
def test_a_host_with_a_sqlite_of_its_own(
    hosts: Path, model: Path, library: Path, cache: Path, tmp_path: Path, host: str
) -> None:
    load = () if host == "linked_host" else ("open", library)
    own = ("own-database", tmp_path / "own.sqlite")
    # Both are open at once, and the host closes its own while the cache goes on.
    steps = (*load, *own, "load", model, "run", "a", "flush", *own, "run", "b", "rows", "1", "2")
    printed = lines(hosts / host, *steps, *own, "run", "a", cache=cache, MODCACHE_CODEC="zstd")
    if load:
        assert printed.pop(0) == "opened"
    own_rows = [line for line in printed if line.endswith(" rows")]
    assert own_rows == ["1 rows", "2 rows", "3 rows"]
    assert [line for line in printed if line not in own_rows] == [
        *("loaded", VALUE, "flushed", VALUE, f"{VALUE} {VALUE}", VALUE)
    ]
    hits = ("load", model, "run", "a", "run", "b", "rows", "1", "2")
    counters = ("stat", "hits_disk", "stat", "corrupt", "stat", "errors")
    printed = lines(hosts / "linked_host", *hits, *counters, cache=cache)
    assert printed[-3:] == ["4", "0", "0"]
    assert_is_sound(cache)


def test_a_host_whose_symbols_have_the_same_names(hosts: Path, model: Path, cache: Path) -> None:
    trap = {"LD_PRELOAD": str(hosts / "libtrap.so"), "MODCACHE_CODEC": "zstd"}
    steps = ("load", model, "run", "a", "rows", "1", "2", "flush")
    stored = lines(hosts / "linked_host", *steps, "stat", "stored", cache=cache, **trap)
    assert stored == ["loaded", VALUE, f"{VALUE} {VALUE}", "flushed", "3"]
    found = lines(hosts / "linked_host", *steps, "stat", "misses", cache=cache, **trap)
    assert found == [*stored[:-1], "0"]
    assert_is_sound(cache)


def test_the_trap_catches_who_calls_the_names_of_the_host(hosts: Path, cache: Path) -> None:
    caught = run(hosts / "linked_host", "own-database", cache, LD_PRELOAD=str(hosts / "libtrap.so"))
    assert caught.returncode != 0
    assert "the host's sqlite3_" in caught.stderr


def assert_is_sound(cache: Path) -> None:
    (index,) = cache.rglob("index.sqlite")
    with sqlite3.connect(f"file:{index}?mode=ro", uri=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_frozen_copy_hits_what_the_model_stored(
    hosts: Path, model: Path, cache: Path, tmp_path: Path
) -> None:
    frozen = tmp_path / "frozen.pt"
    steps = ("load", model, "run", "a", "freeze", "run", "a", "run", "b", "save", frozen)
    printed = lines(hosts / "linked_host", *steps, "stat", "hits_memory", cache=cache)
    assert printed == ["loaded", VALUE, "frozen", VALUE, VALUE, "saved", "1"]
    loaded = ("load", frozen, "run", "a", "run", "b", "stat", "hits_disk", "stat", "misses")
    printed = lines(hosts / "linked_host", *loaded, cache=cache)
    assert printed == ["loaded", VALUE, VALUE, "2", "0"]
