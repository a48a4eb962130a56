# SPDX-License-Identifier: Apache-2.0
"""Every test has a cache directory, counters and a mode of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import accelerator  # noqa: F401  # loads the test device where one is named
import modcache
import pytest
import torch
from modcache._library import log
from processes import ProcessRunner
from scripting import scripts

# These are about the compiled part itself. They fail where that merely was not built.
if os.environ.get("MODCACHE_COMPILED_PART") == "off":
    names = "begun hit_modes hit_path miss_path package_values scripted_calls snapshot"
    collect_ignore = [f"test_{name}.py" for name in names.split()]
# A forked child must find no thread pool of the parent's. Two cores are shared with children.
torch.set_num_threads(1)
# Tests read the messages from standard error, at once; test_logging.py has the other way.
log.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need TorchScript."""
    for item in items:
        test, _, parameters = item.name.partition("[")
        if item.path.parent == Path(__file__).parent and scripts(
            item.path.name, test, parameters.removesuffix("]")
        ):
            item.add_marker("scripts")


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path) -> Iterator[Path]:
    """The directory of this test's cache, which nothing has touched yet."""
    torch.manual_seed(0)
    directory = tmp_path / "cache"
    before = {name: value for name, value in modcache.settings().items() if name != "dir"}
    modcache.configure(dir=directory)
    modcache.set_mode("on")
    modcache.reset_stats()
    yield directory
    modcache.configure(dir=tmp_path / "left", **before)
    modcache.set_mode("on")


@pytest.fixture
def counted() -> Callable[[], dict[str, int]]:
    """Returns what the counters have grown by since the last call of it, zeros left out."""
    last = modcache.stats()

    def growth() -> dict[str, int]:
        nonlocal last
        now = modcache.stats()
        names = [name for name in now if not name.endswith("_us")]
        grown = {
            name: now[name] - last[name]
            for name in names
            if name.split("_")[0] not in ("entries", "bytes")
        }
        last = now
        return {name: count for name, count in grown.items() if count}

    return growth


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessRunner]:
    """Runs functions in fresh processes that have torch imported already."""
    runner = ProcessRunner(tmp_path)
    yield runner
    runner.kill_all()


@pytest.fixture
def reopen(cache_dir: Path) -> Callable[[], None]:
    """Makes the next call read from disk: flushes, and forgets all that is in memory."""

    def forget() -> None:
        modcache.flush()
        modcache.configure(dir=cache_dir.parent / "elsewhere")
        modcache.stats()
        modcache.clear(tier="memory")
        modcache.configure(dir=cache_dir)
        modcache.clear(tier="memory")

    return forget


@pytest.fixture(params=["none", "zstd"])
def codec(request: pytest.FixtureRequest) -> str:
    """Both codecs, each in force during one run of the test."""
    modcache.configure(codec=request.param)
    return str(request.param)
