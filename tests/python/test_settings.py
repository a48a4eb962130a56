# SPDX-License-Identifier: Apache-2.0
"""Options: what may be given, and that a mistake is explained and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

OPTIONS = (
    "dir",
    "mode",
    "memory",
    "disk",
    "durability",
    "policy",
    "admission",
    "max_age",
    "match",
    "strict",
    "namespace",
    "io",
    "log",
    "dtype",
    "codec",
    "remote",
    "remote_timeout_ms",
    "remote_ttl",
    "verify_share",
    "min_run_us",
)


def test_settings_shows_every_option() -> None:
    assert set(modcache.settings()) == set(OPTIONS)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"memory": 1000}, {"memory": "1000"}),
        ({"memory": 1e6}, {"memory": "1000000"}),
        ({"memory": "2GB"}, {"memory": "2000000000"}),
        ({"memory": "1.5 KiB"}, {"memory": "1536"}),
        ({"memory": "512MiB", "disk": "1TB"}, {"memory": "536870912", "disk": "1000000000000"}),
        ({"memory": 0}, {"memory": "0"}),
        ({"strict": True}, {"strict": "true"}),
        ({"strict": False}, {"strict": "false"}),
        ({"strict": "1"}, {"strict": "true"}),
        ({"match": "none"}, {"match": "none"}),
        ({"durability": "strict"}, {"durability": "strict"}),
        ({"policy": "lru"}, {"policy": "lru"}),
        ({"io": "pread"}, {"io": "pread"}),
        ({"log": "error"}, {"log": "error"}),
        ({"namespace": "täg"}, {"namespace": "täg"}),
        ({"mode": "verify"}, {"mode": "verify"}),
        ({"dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        ({"codec": "zstd"}, {"codec": "zstd"}),
        ({"verify_share": 1e-5}, {"verify_share": "1e-05"}),
        ({"verify_share": 0.0}, {"verify_share": "0"}),
        ({"min_run_us": 5000}, {"min_run_us": "5000"}),
        ({"min_run_us": 5e3}, {"min_run_us": "5000"}),
    ],
    ids=str,
)
def test_what_is_given_shows(given: dict[str, Any], shown: dict[str, str]) -> None:
    modcache.configure(**given)
    assert {name: modcache.settings()[name] for name in shown} == shown


def test_what_settings_shows_can_be_given_back() -> None:
    before = modcache.settings()
    modcache.configure(**before)
    assert modcache.settings() == before


def test_a_path_may_be_relative_and_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modcache.configure(dir=Path("some/where"))
    assert modcache.settings()["dir"] == str(tmp_path / "some" / "where")


BAD = [
    ({"memory": -1}, ["memory", "-1", "bytes"]),
    ({"disk": "-2GB"}, ["disk", "-2GB", "bytes"]),
    ({"memory": "lots"}, ["memory", "lots", "2GB"]),
    ({"memory": float("nan")}, ["memory", "nan"]),
    ({"memory": ""}, ["memory"]),
    ({"memory": "5 bananas"}, ["memory", "5 bananas"]),
    ({"mode": "sometimes"}, ["mode", "sometimes", "off, read, on, refresh, verify"]),
    ({"match": "all"}, ["match", "all", "input", "none"]),
    ({"durability": "eternal"}, ["durability", "relaxed", "strict"]),
    ({"policy": "fifo"}, ["policy", "fifo", "auto, lru, keep"]),
    ({"io": "aio"}, ["io", "aio", "mmap", "pread"]),
    ({"log": "debug"}, ["log", "debug", "off", "error", "warning", "info"]),
    ({"dtype": "half"}, ["dtype", "half", "keep", "float16", "bfloat16"]),
    ({"codec": "gzip"}, ["codec", "gzip", "none", "zstd"]),
    ({"verify_share": -1e-4}, ["verify_share", "-0.0001", "0 to 1"]),
    ({"verify_share": float("inf")}, ["verify_share", "inf", "0 to 1"]),
    ({"min_run_us": -1}, ["min_run_us", "-1", "not negative"]),
    ({"min_run_us": 1.5}, ["min_run_us", "1.5", "integer"]),
    ({"strict": "perhaps"}, ["strict", "perhaps", "true", "false"]),
    ({"dir": ""}, ["dir"]),
    ({"dir": "~no-such-user/cache"}, ["dir", "~no-such-user/cache", "no user 'no-such-user'"]),
    ({"dir": None}, ["dir", "None", "str"]),
    ({"memory": None}, ["memory", "None"]),
    ({"memory": [1]}, ["memory", "list"]),
    ({"dir": b"/tmp/x"}, ["dir", "bytes"]),
    ({"dir": "/tmp/\ud800"}, ["dir", "surrogate"]),
    ({"memroy": 1}, ["memroy", *OPTIONS]),
]


@pytest.mark.parametrize(("options", "parts"), BAD, ids=lambda value: ascii(value)[:40])
def test_a_mistake_says_what_was_given_and_what_is_valid_and_changes_nothing(
    options: dict[str, Any], parts: list[str]
) -> None:
    before = modcache.settings()
    with pytest.raises((ValueError, TypeError)) as caught:
        modcache.configure(namespace="changed", **options)
    for part in parts:
        assert part in str(caught.value)
    assert modcache.settings() == before


@pytest.mark.parametrize(("given", "below_home"), [("~", ""), ("~/a/cache", "a/cache")])
def test_home_directory_is_expanded(
    given: str, below_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    modcache.configure(dir=given)
    assert modcache.settings()["dir"] == str(tmp_path / below_home)


def test_directory_that_is_not_unicode(tmp_path: Path, counted: Any) -> None:
    directory = os.fsdecode(os.fsencode(tmp_path) + b"/latin\xe4")
    for expected in ({"misses": 1, "stored": 1}, {"hits_disk": 1}):
        modcache.configure(dir=directory)
        assert modcache.settings()["dir"] == directory
        counted()
        modcache.lookup_or_run(nn.ReLU(), torch.ones(1), "key", scope="relu@1")
        grown = counted()
        assert {name: grown[name] for name in expected} == expected
        modcache.flush()
        modcache.configure(dir=tmp_path / "other")
        modcache.clear(tier="memory")
    assert Path(directory).is_dir()


def test_home_directory_is_expanded_in_environment(processes: ProcessRunner) -> None:
    env = {"MODCACHE_DIR": "~/cache", "HOME": "/users/me"}
    assert processes.run(settings_of_process, env=env).value["dir"] == "/users/me/cache"


def settings_of_process() -> dict[str, str]:
    return modcache.settings()


def test_the_environment_gives_defaults_and_configure_wins(processes: ProcessRunner) -> None:
    env = {"MODCACHE_MEMORY": "3MB", "MODCACHE_MATCH": "none", "MODCACHE_STRICT": "1"}
    found = processes.run(settings_of_process, env=env).value
    assert (found["memory"], found["match"], found["strict"]) == ("3000000", "none", "true")
    assert processes.run(configured_over_environment, env=env).value["memory"] == "7"


def configured_over_environment() -> dict[str, str]:
    modcache.configure(memory=7)
    return modcache.settings()


def test_the_default_directory_follows_xdg(processes: ProcessRunner, tmp_path: Path) -> None:
    found = processes.run(settings_without_dir, env={"XDG_CACHE_HOME": str(tmp_path)}).value
    assert found["dir"] == str(tmp_path / "modcache")
    assert found["memory"] == "1000000000"
    assert found["disk"] == "100000000000"
    assert (found["mode"], found["match"], found["strict"]) == ("on", "input", "false")
    assert (found["dtype"], found["codec"]) == ("keep", "none")
    assert found["min_run_us"] == "0"


def settings_without_dir() -> dict[str, str]:
    import os

    del os.environ["MODCACHE_DIR"]
    return modcache.settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MEMORY", "-1"),
        ("DISK", "huge"),
        ("MATCH", "x"),
        ("STRICT", "maybe"),
        ("LOG", "loud"),
        ("MIN_RUN_US", "many"),
    ],
)
def test_a_bad_environment_is_warned_about_and_the_default_used(
    name: str, value: str, processes: ProcessRunner
) -> None:
    outcome = processes.run(settings_of_process, env={f"MODCACHE_{name}": value})
    default = processes.run(settings_of_process).value
    assert outcome.value == default
    (line,) = outcome.log_lines
    assert f"MODCACHE_{name}" in line
    assert value in line


def test_another_directory_has_other_entries(tmp_path: Path, cache_dir: Path, counted: Any) -> None:
    module, x = nn.ReLU(), torch.ones(2)
    modcache.lookup_or_run(module, x, "k")
    modcache.configure(dir=tmp_path / "other")
    modcache.lookup_or_run(module, x, "k")
    assert counted() == {"misses": 2, "stored": 2}
    modcache.configure(dir=cache_dir)
    modcache.lookup_or_run(module, x, "k")
    assert counted() in ({"hits_memory": 1}, {"hits_disk": 1})


def test_no_memory_tier_still_hits_on_disk(counted: Any) -> None:
    modcache.configure(memory=0)
    module, x = nn.ReLU(), torch.ones(2)
    for _ in range(3):
        modcache.lookup_or_run(module, x, "k")
    assert counted() == {"misses": 1, "stored": 1, "hits_disk": 2}
    assert modcache.stats()["entries_memory"] == 0


def test_memory_holds_no_more_than_its_budget() -> None:
    modcache.configure(memory=10_000)
    module = nn.ReLU()
    for index in range(20):
        modcache.lookup_or_run(module, torch.full((1000,), float(index)), str(index))
        stats = modcache.stats()
        assert stats["bytes_memory"] <= 10_000 + 5_000
    for index in range(20):
        x = torch.full((1000,), float(index))
        assert torch.equal(modcache.lookup_or_run(module, x, str(index)), x)
    assert modcache.stats()["misses"] == 20


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("durability", ["relaxed", "strict"])
def test_every_way_of_reading_and_writing_keeps_values(
    io: str, durability: str, reopen: Any
) -> None:
    modcache.configure(io=io, durability=durability)
    values = {str(size): torch.randn(size) for size in (1, 100, 100_000)}
    for key, value in values.items():
        modcache.lookup_or_run(nn.Identity(), value, key)
    reopen()
    for key, value in values.items():
        assert torch.equal(modcache.lookup_or_run(nn.Identity(), value, key), value)
    assert modcache.stats()["hits_disk"] == len(values)


def test_results_of_short_runs_are_not_kept_and_stored_values_are(counted: Any) -> None:
    modcache.configure(min_run_us=60_000_000)
    x = torch.ones(2)
    modcache.lookup_or_run(nn.ReLU(), x, "k")
    assert counted() == {"misses": 1}
    torch.ops.cache.store("s", "k", x)
    assert counted() == {"stored": 1}
    assert modcache.contains("s", "k")
    modcache.configure(min_run_us=0)
    modcache.lookup_or_run(nn.ReLU(), x, "k")
    assert counted() == {"misses": 1, "stored": 1}
