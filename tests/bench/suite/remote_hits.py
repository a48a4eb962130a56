# SPDX-License-Identifier: Apache-2.0
"""Batches that only a server has (remote_batch.cpp), beside a pipeline over the same bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from suite.measurement import Comparison, Figures, Measurement, Place
from suite.scripted_hits import BUILD, built

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "remote"))

from redis_servers import RedisServer

ROWS = 256


class RemoteBatch(Measurement):
    """A Redis on loopback, which each round starts."""

    name = "batch from a server, 2 KiB"
    title = f"a batch of {ROWS} x 2 KiB that only Redis on this machine has, per key"
    matches = ("none",)

    def limits(self) -> list[Comparison]:
        path = f"batch of {ROWS} x 2 KiB from Redis"
        return [
            # 70 % of what the connection gives.
            Comparison(
                f"{path}, beside a pipeline of GETs over the same bytes",
                "modcache", 1 / 0.7, "pipeline", ceiling=3.5,
            ),
            Comparison(
                f"{path}, beside one key at a time",
                "modcache", 0.1, "modcache, one key at a time", ceiling=0.3,
            ),
        ]  # fmt: skip

    def missing(self) -> str:
        if shutil.which("redis-server") is None:
            return "redis-server is not installed (on Debian: apt-get install redis-server)"
        if not built("remote_batch").exists():
            return f"tests/bench/remote_batch.cpp is not built ({BUILD} names where it is)"
        return ""

    def measure(self, place: Place) -> Figures:
        with RedisServer(place.folder / "server") as server:
            program = [str(built("remote_batch")), server.address, str(place.of(2400))]
            done = subprocess.run(program, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        assert found["rows"] == ROWS
        names = {
            "modcache": "batch_us",
            "pipeline": "raw_pipeline_us",
            "modcache, one key at a time": "one_by_one_us",
        }
        return {name: found[of] / ROWS for name, of in names.items()}


def measurements() -> list[Measurement]:
    return [RemoteBatch()]
