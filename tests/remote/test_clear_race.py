# SPDX-License-Identifier: Apache-2.0
"""Clears by one process while another copies from the server into the directory of both."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import modcache
import torch
from redis_servers import RedisServer
from torch import nn

KEYS = 20
RUNS_S = 6


class Versioned(nn.Module):
    """Gives the version of the moment, which grows before each clear."""

    def __init__(self, version: Path) -> None:
        super().__init__()
        self.version = version

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        version = self.version.stat().st_size
        if random.random() < 0.3:
            time.sleep(random.random() * 0.003)
        return x + 1000 * version


def ask(cache: modcache.Cache, version: Path, key: int) -> int:
    """Returns the version that the result was computed with."""
    x = torch.full((2,), float(key))
    result = cache.lookup_or_run(Versioned(version), x, f"key-{key}", scope="raced")
    return int((result[0].item() - key) / 1000)


ASKING = """
    import random, sys, time
    from pathlib import Path
    import modcache, torch
    sys.path.insert(0, {folder!r})
    from test_clear_race import KEYS, RUNS_S, ask
    torch.set_num_threads(1)
    cache = modcache.Cache(dir={directory!r}, memory=0, remote={address!r})
    print("ready", flush=True)
    end = time.monotonic() + RUNS_S
    while time.monotonic() < end:
        ask(cache, Path({version!r}), random.randrange(KEYS))
"""


# The copy was stored after the clear took its place in the order of the directory, and before it
# showed: it stayed there.
def test_no_result_from_before_a_clear_comes_back(server: RedisServer, tmp_path: Path) -> None:
    version, directory = tmp_path / "version", str(tmp_path / "directory")
    version.touch()
    program = textwrap.dedent(ASKING).format(
        folder=str(Path(__file__).parent),
        directory=directory,
        address=server.address,
        version=str(version),
    )
    cache = modcache.Cache(dir=directory, memory=0, remote=server.address)
    with (
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as other,
        version.open("ab", buffering=0) as grown,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        end = time.monotonic() + RUNS_S
        cleared = 0
        while time.monotonic() < end:
            if random.random() < 0.03:
                grown.write(b"+")
                cache.clear("raced")
                cleared += 1
            assert ask(cache, version, random.randrange(KEYS)) >= cleared
        assert other.wait(timeout=60) == 0
    assert cleared > 10
    assert cache.stats()["hits_disk"] > 0
