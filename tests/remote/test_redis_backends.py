# SPDX-License-Identifier: Apache-2.0
"""The backend of Redis and Valkey keeps the contract of backends on each kind of server."""

from __future__ import annotations

from pathlib import Path

from redis_cluster import RedisCluster
from redis_servers import RedisServer
from test_http_backends import PING, check_contract, check_failure


def test_each_kind_keeps_the_contract(address: str) -> None:
    check_contract(address)


def test_a_server_with_a_password_keeps_it_for_those_who_know_it(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r", password="p@ss:word/1") as server:
        check_contract(server.address)
        said = check_failure(server.address.replace("word", "work"), PING, "WRONGPASS")
        assert "p@ss" not in said
        assert "p%40ss" not in said
        # Without a password at all.
        check_failure(f"redis://127.0.0.1:{server.port}/0", PING, "NOAUTH")


def test_a_cluster_with_a_password(tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "c", replicas=0, password="secret") as cluster:
        check_contract(cluster.address)
        check_failure(cluster.address.replace("secret", "wrong"), PING, "WRONGPASS")


def test_another_database_has_other_values(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r") as server:
        check_contract(server.address.replace("/0", "/3"))
        assert server.info("keyspace").keys() <= {"db3"}
        check_failure(server.address.replace("/0", "/99"), PING, "DB index is out of range")
