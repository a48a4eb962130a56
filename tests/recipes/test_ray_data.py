# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/ray-data.md with the real library, and a real server of Redis.

Ray lies in the folder that MODCACHE_RAY names, as ./tests/run has it: transformers and others
behave otherwise where they see pandas and pyarrow.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import modcache
import pytest
import ray_driver
import recipe
import torch
from bound_process import end, start_bound
from ray_driver import BATCH, BLOCK, LOG, ROWS
from redis_servers import RedisServer, wait_until

RAY = Path(os.environ.get("MODCACHE_RAY", "build/ray")).resolve()
LONGEST_S = 180.0


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="redis") as folder, RedisServer(Path(folder)) as server:
        yield server


class Fill:
    """A program that fills, and the log of what its module runs."""

    def __init__(self, folder: Path, short_folder: str, address: str) -> None:
        self.log, self._output, self._errors = (folder / name for name in ("log", "out", "err"))
        self.log.touch()
        here = Path(__file__).parent
        environment = {
            LOG: str(self.log),
            "HOME": str(folder),  # Ray keeps a secret there
            "PYTHONPATH": os.pathsep.join([str(here), str(RAY), os.environ.get("PYTHONPATH", "")]),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as there, it listens to loopback alone
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        code = "import ray_driver; ray_driver.main()"
        variables = [f"{name}={value}" for name, value in environment.items()]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            command = ["env", *variables, sys.executable, "-c", code, address, short_folder]
            self.process = start_bound(command, stdout=output, stderr=errors)

    def __enter__(self) -> Fill:
        return self

    def __exit__(self, *_: object) -> None:
        """What Ray has started may last for a minute longer than the program."""
        end(self.process)
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_until(lambda: not self._processes(), "Ray has ended")

    def _processes(self) -> list[int]:
        """Those that have the log in their environment."""
        mark = f"{LOG}={self.log}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def ran(self) -> list[tuple[int, int]]:
        """Each row that was run, and the process that ran it."""
        lines = self.log.read_text().splitlines()
        return [(int(row), int(process)) for row, process in map(str.split, lines)]

    def kill_a_worker(self) -> int:
        """Kills the first worker that runs the third batch of its second block."""
        begun = BLOCK + 3 * BATCH
        end_s = time.monotonic() + LONGEST_S
        while time.monotonic() < end_s and self.process.poll() is None:
            for process, rows in Counter(process for _, process in self.ran()).items():
                if rows == begun:
                    os.kill(process, signal.SIGKILL)
                    return process
            time.sleep(0.005)
        raise AssertionError(self._errors.read_text())

    def counts(self) -> dict[str, int]:
        """What the recipe counted, at its end."""
        assert self.process.wait(LONGEST_S) == 0, self._errors.read_text()
        counts: dict[str, int] = json.loads(self._output.read_text().splitlines()[-1])
        return counts


@pytest.mark.thorough
def test_nothing_is_missing_after_a_worker_was_killed(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (RAY / "ray").exists():
        pytest.skip("Ray is not installed")
    # The paths of Ray's sockets begin with this one.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short_folder,
        Fill(tmp_path, short_folder, redis.address) as fill,
    ):
        killed = fill.kill_a_worker()
        counts = fill.counts()
    ran = fill.ran()
    assert {row for row, _ in ran} == set(range(ROWS))
    assert len(ran) - ROWS <= BATCH, "what the worker had at hand"
    of_killed = [process for _, process in ran].count(killed)
    assert of_killed == BLOCK + 3 * BATCH
    assert len({process for _, process in ran}) == ray_driver.WORKERS + 1, "one took its place"
    assert counts["rows"] == ROWS
    assert counts["hits_remote"] >= 2 * BATCH, "the rest of its block was on the server already"
    assert counts["hits_remote"] + counts["misses"] == ROWS
    assert counts["remote_dropped"] == 0

    modcache.configure(dir=tmp_path / "later", remote=redis.address)
    modcache.reset_stats()
    monkeypatch.setenv(LOG, str(fill.log))
    encoder = ray_driver.load_encoder().requires_grad_(False).eval()
    ids = torch.arange(ROWS)
    features = modcache.lookup_or_run(encoder, ray_driver.images_of(ids), ids)
    assert modcache.stats()["hits_remote"] == ROWS
    assert fill.ran() == ran, "no row ran"
    monkeypatch.setenv(LOG, os.devnull)
    assert torch.allclose(features, encoder(ray_driver.images_of(ids)), atol=1e-6)


class Rows:
    """Stands for a data set of one batch, in this process."""

    def map_batches(self, kind: Any, **_: object) -> Rows:
        self._filler = kind()
        return self

    def iter_rows(self) -> Iterator[dict[str, int]]:
        ids = torch.arange(BATCH)
        batch = {"id": ids.numpy(), "image": ray_driver.images_of(ids).numpy()}
        yield {name: column[0] for name, column in self._filler(batch).items()}


def test_a_server_that_takes_nothing_is_an_error(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, os.devnull)
    ray: Any = ModuleType("ray")
    ray.data = SimpleNamespace(ActorPoolStrategy=lambda size: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    given = {
        "rows": Rows(),
        "load_encoder": ray_driver.load_encoder,
        "server": redis.address,
        "workers": 1,
        "batch_size": BATCH,
        "needs": {},
    }
    redis.kill()
    with pytest.raises(RuntimeError, match="did not take all"):
        recipe.run("ray-data", **given)
    modcache.configure(remote="")  # another program has not seen the server fail
    redis.start()
    names: Any = recipe.run("ray-data", **given)
    assert names["total"]["misses"] == BATCH
    assert names["total"]["remote_stored"] >= BATCH
