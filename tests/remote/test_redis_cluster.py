# SPDX-License-Identifier: Apache-2.0
"""A cluster that tests start fails over, and moves slots while a client reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_cluster import RedisCluster
from redis_wire import RedisConnection, RedisError, Reply

# They are about the servers of tests, which each test of the remote tier uses.
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cluster(binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """One for all tests, which leave it whole."""
    began = time.monotonic()
    with RedisCluster(tmp_path_factory.mktemp("cluster"), binary=binary) as cluster:
        print(f"a cluster of 6 took {time.monotonic() - began:.1f} s")
        yield cluster


class FollowingReader:
    """Reads keys of a cluster as a client does, and counts where it was sent elsewhere."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._connections: dict[int, RedisConnection] = {}
        self._ports: dict[str, int] = {}
        self._first = cluster.nodes[0].port
        self.redirected = {"ASK": 0, "MOVED": 0}

    def ask(self, verb: str, key: str, *more: str) -> Reply:
        port, asking = self._ports.get(key, self._first), False
        for _ in range(5):
            connection = self._connection(port)
            if asking:
                connection.ask("ASKING")
            try:
                return connection.ask(verb, key, *more)
            except RedisError as error:
                asking = error.code == "ASK"
                if error.code not in self.redirected:
                    raise
                self.redirected[error.code] += 1
                port = int(str(error).rpartition(":")[2])
                if not asking:
                    self._ports[key] = port
        raise AssertionError("sent around in a circle")

    def _connection(self, port: int) -> RedisConnection:
        if port not in self._connections:
            self._connections[port] = RedisConnection(("127.0.0.1", port))
        return self._connections[port]

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


@pytest.fixture
def reader(cluster: RedisCluster) -> Iterator[FollowingReader]:
    reader = FollowingReader(cluster)
    yield reader
    reader.close()


def test_a_cluster_comes_up(cluster: RedisCluster) -> None:
    ports = [node.port for node in cluster.nodes]
    places = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
    assert cluster.address == f"redis+cluster://{places}"
    assert [cluster.primary(i).port for i in range(3)] == ports[:3]
    for i in range(3):
        primary, replica = cluster.shard(i)
        assert len(primary.view().slots) in (5461, 5462)
        assert replica.view().primary == primary.identity()


def test_slots_move_while_a_client_reads(cluster: RedisCluster, reader: FollowingReader) -> None:
    keys = [f"key-{i}" for i in range(300)]
    for key in keys:
        reader.ask("SET", key, key)
    assert cluster.keys() == 300
    reader.redirected = {"ASK": 0, "MOVED": 0}
    moved: list[int] = []
    began = time.monotonic()
    moving = threading.Thread(target=lambda: moved.append(cluster.migrate_slots(0, 1, 60, 0.01)))
    moving.start()
    while moving.is_alive():
        for key in keys:
            assert reader.ask("GET", key) == key.encode()
    moving.join()
    for key in keys:
        assert reader.ask("GET", key) == key.encode()
    print(f"{moved} keys in {time.monotonic() - began:.1f} s, {reader.redirected}")
    assert moved[0] >= 60
    assert reader.redirected["MOVED"] >= 60
    assert reader.redirected["ASK"] > 0
    assert len(cluster.primary(0).view().slots) == 5461 - 60
    assert cluster.keys() == 300


def test_a_replica_and_its_primary_change_places(cluster: RedisCluster) -> None:
    before = cluster.primary(1)
    after = cluster.fail_over(1)
    assert after is cluster.primary(1)
    assert after is not before
    assert not before.is_primary()


def test_a_replica_takes_over_in_a_cluster(cluster: RedisCluster, reader: FollowingReader) -> None:
    reader.ask("SET", "key", "value")
    killed = cluster.kill_primary(2)
    began = time.monotonic()
    cluster.wait_until_failed_over()
    print(f"failed over in {time.monotonic() - began:.1f} s")
    assert cluster.primary(2) is not killed
    killed.restart()
    cluster.wait_until_settled()
    assert not killed.is_primary()


def test_a_replica_takes_over_from_one_that_hangs(cluster: RedisCluster) -> None:
    hanging = cluster.primary(0)
    hanging.stop_answering()
    cluster.wait_until_failed_over()
    assert cluster.primary(0) is not hanging
    hanging.go_on()
    cluster.wait_until_settled()
    assert not hanging.is_primary()


def test_a_small_cluster_with_a_password(binary: str, tmp_path: Path) -> None:
    with RedisCluster(tmp_path, 2, 0, binary=binary, password="p") as cluster:
        assert cluster.address.startswith("redis+cluster://:p@127.0.0.1:")
        node = cluster.primary(1)
        key = next(f"key-{i}" for i in range(100) if _is_of(node.port, cluster, f"key-{i}"))
        node.cli("SET", key, "value")
        assert cluster.migrate_slots(1, 0, 1) == 1
        assert cluster.primary(0).cli("GET", key) == "value"


def _is_of(port: int, cluster: RedisCluster, key: str) -> bool:
    slot = int(cluster.nodes[0].cli("CLUSTER", "KEYSLOT", key))
    return any(view.port == port and slot in view.slots for view in cluster.nodes[0].views())
