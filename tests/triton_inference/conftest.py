# SPDX-License-Identifier: Apache-2.0
"""Servers that end with their test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served_models import write_double
from triton_server import (
    BUILD,
    OUR_CACHES,
    TRITON,
    StartServer,
    TritonServer,
    cache_options,
    library_path,
    make_backends,
    stub,
)


@pytest.fixture(scope="session", autouse=True)
def _triton() -> None:
    server = TRITON / "bin" / "tritonserver"
    assert server.exists(), "first: ./tests/run --only triton"
    assert (OUR_CACHES / "modcache").exists(), "first: ./tests/run --only build"
    assert stub().exists(), f"nvidia-pytriton has no Python backend for this Python: {stub()}"
    for program in (server, stub()):
        program.chmod(0o755)
        environment = {**os.environ, "LD_LIBRARY_PATH": library_path()}
        needed = subprocess.run(
            ["ldd", program], env=environment, capture_output=True, text=True, check=True
        )
        missing = [line.split()[0] for line in needed.stdout.splitlines() if "not found" in line]
        assert not missing, f"{program.name} needs libraries that this system lacks: {missing}"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model repository that has `double`."""
    make_backends(tmp_path / "backends")
    write_double(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def servers() -> Iterator[list[TritonServer]]:
    servers: list[TritonServer] = []
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def start(models: Path, directory: Path, servers: list[TritonServer]) -> StartServer:
    """Starts a server with our cache on `directory` and more settings of it."""

    def start(**settings: str) -> TritonServer:
        server = TritonServer(models, OUR_CACHES, *cache_options(directory, **settings))
        servers.append(server)
        return server.start()

    return start


@pytest.fixture
def modcache(directory: Path) -> Callable[..., str]:
    """Runs the program on the directory; returns what it printed."""

    def run(command: str, *arguments: str) -> str:
        program = str(BUILD / "bin" / "modcache")
        done = subprocess.run(
            [program, command, *arguments, str(directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
