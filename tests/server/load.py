# SPDX-License-Identifier: Apache-2.0
"""wrk, and what it counted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from running import RunningServer

CONNECTIONS = 64
# How long each load lasts. ./tests/run keeps it short; 60 is what a release is measured with.
LOAD_S = int(os.environ.get("MODCACHE_LOAD_S", "8"))
_SCRIPT = Path(__file__).with_name("load.lua")
_seeds = itertools.count(1)


@dataclass
class Counted:
    requests: int
    seconds: float
    errors: int  # of any kind: no connection, no answer, an answer that is none of 2xx and 3xx
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


class Load:
    """Begins at once; result() waits for its end."""

    def __init__(
        self, server: RunningServer, *, seconds: int, repeated: float = 0.9, ids: int = 200
    ) -> None:
        command = ["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s"]
        command += ["--timeout", "60s", "-s", str(_SCRIPT), f"http://127.0.0.1:{server.port}/"]
        command += ["--", str(repeated), str(ids), str(1_000_000 * next(_seeds))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> Counted:
        """Ends it before its time."""
        self._process.send_signal(signal.SIGINT)
        return self.result()

    def result(self) -> Counted:
        said, _ = self._process.communicate(timeout=7200)
        assert self._process.returncode == 0, said
        found = json.loads(said.splitlines()[-1])
        kinds = ("connect", "read", "write", "status", "timeout")
        return Counted(
            found["requests"],
            found["seconds"],
            sum(found[kind] for kind in kinds),
            found["p50_ms"],
            found["p99_ms"],
        )


def load(server: RunningServer, *, seconds: int = LOAD_S, repeated: float = 0.9) -> Counted:
    return Load(server, seconds=seconds, repeated=repeated).result()
