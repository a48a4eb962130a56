# SPDX-License-Identifier: Apache-2.0
"""The backend of Redis and Valkey keeps the contract of backends on each kind of server."""

from __future__ import annotations

import time
from pathlib import Path

import modcache
import pytest
import torch
from backend_binary import PING, PUT, check_contract, check_failure, check_fault
from delayed_port import UnansweredPort
from machines import Machines, slow_module
from redis_cluster import RedisCluster
from redis_fake import NOTHING, FakeRedis, slots
from redis_servers import RedisServer, wait_until, with_replica
from test_trouble import Load, hits_again, without_near_tiers

TIMEOUT = {"MODCACHE_TEST_REMOTE_TIMEOUT_MS": "2000"}


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


# --- Servers that hang ---


def test_the_second_host_is_reached_where_connecting_to_the_first_one_hangs(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r") as server, UnansweredPort() as off:
        check_contract(f"redis://127.0.0.1:{off.port},127.0.0.1:{server.port}/0", **TIMEOUT)


def test_the_second_host_is_reached_where_the_first_one_does_not_answer(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "a") as hung, RedisServer(tmp_path / "b") as server:
        hung.stop_answering()
        check_contract(f"redis://127.0.0.1:{hung.port},127.0.0.1:{server.port}/0", **TIMEOUT)
        hung.go_on()


def test_a_replica_is_read_while_its_primary_hangs(machines: Machines, tmp_path: Path) -> None:
    with with_replica(tmp_path / "pair") as (primary, replica):
        address = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}/0"
        without_near_tiers(machines, address)
        with Load() as load:
            hits_again(load)
            wait_until(lambda: replica.cli("DBSIZE") != "0", "the replica has values")
            primary.stop_answering()
            time.sleep(0.5)
            hits_again(load)
            primary.go_on()
        load.check()


def test_a_node_that_hangs_costs_its_own_keys_alone(
    machines: Machines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with RedisCluster(tmp_path / "c", replicas=0) as cluster:
        # A busy machine may take long for what is not late.
        machines.become("here", cluster.address, memory=0, disk=0, remote_timeout_ms=4000)
        load = Load()
        load.module = slow_module()
        with load:
            hits_again(load)
            # Without the marks of the generation nothing is found.
            hung = next(node for node in cluster.nodes if not node.cli("KEYS", "*/ctl/*"))
            hung.stop_answering()
            for _ in range(3):
                time.sleep(0.5)
                hits_again(load)
            # Another test's server may be told of as well.
            assert f"{cluster.address}' cannot be used" not in capfd.readouterr().err
            hung.go_on()
        assert load.failures == []


def test_any_node_of_a_cluster_answers_a_ping(tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "c", replicas=0) as cluster:
        for hung in cluster.nodes:
            hung.stop_answering()
            check_contract(cluster.address, PING, **TIMEOUT)
            hung.go_on()


# --- Faults of a server ---


def test_a_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r", persistent=True) as server:

        def kill_twice() -> None:
            for _ in range(2):
                server.kill()
                time.sleep(1)
                server.start()
                time.sleep(1)

        check_fault(server.address, kill_twice)


def test_calls_time_out_while_a_server_hangs(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r") as server:

        def hang() -> None:
            server.stop_answering()
            time.sleep(3)
            server.go_on()

        assert "did not answer in time" in check_fault(server.address, hang)


# --- What a server says ---


def answer_of_node(command: list[bytes], port: int) -> bytes:
    """As the only node of a cluster that has nothing and takes everything."""
    if command[0] == b"CLUSTER":
        return slots(port)
    if command[0] in (b"EXISTS", b"UNLINK"):
        return b":0\r\n"
    return b"+OK\r\n" if command[0] == b"SET" else NOTHING


@pytest.mark.parametrize("word", ["TRYAGAIN", "CLUSTERDOWN", "LOADING"])
def test_what_concerns_one_key_is_no_failure_of_a_cluster(word: str) -> None:
    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"SET":
            return b"-%b it is so\r\n" % word.encode()
        return answer_of_node(command, fake.port)

    with FakeRedis(answer) as fake:
        said = check_failure(f"redis+cluster://127.0.0.1:{fake.port}", PUT, "are_stored")
        assert word not in said


@pytest.mark.parametrize(
    "says",
    [
        "ERR unknown command 'AUTH', with args beginning with: 'me' 'hunter2' ",
        "ERR unknown command `AUTH`, with args beginning with: `me`, `hunt",
        "ERR I do not know hunter2 \x1b[31m" + "so " * 500,
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_credentials_that_a_server_repeats_are_not_shown(says: str, scheme: str) -> None:
    with FakeRedis(lambda command: f"-{says}\r\n".encode()) as fake:
        address = f"{scheme}://me:hunter2@127.0.0.1:{fake.port}"
        said = check_failure(address, PING, "refuses the credentials: ERR")
    assert "hunt" not in said
    assert "\x1b" not in said
    assert "so " * 100 not in said


@pytest.mark.parametrize("answer", [b"$99999999999\r\n", b"+" + b"x" * 100_000])
def test_a_reply_that_is_too_long_is_not_waited_for(answer: bytes) -> None:
    def answered(command: list[bytes]) -> bytes:
        return answer if command[0] == b"MGET" else answer_of_node(command, 0)

    began = time.monotonic()
    with FakeRedis(answered) as fake:
        check_failure(f"redis://127.0.0.1:{fake.port}", PUT, "more than a reply can have")
    assert time.monotonic() - began < 4, "the time-out is 5 s"


# --- How often it is asked ---


@pytest.mark.parametrize("way", ["grad", "min_run_us", "on"])
def test_a_call_asks_once_for_all_its_keys(machines: Machines, tmp_path: Path, way: str) -> None:
    with RedisServer(tmp_path / "r") as server:
        options = {"min_run_us": 10**9} if way == "min_run_us" else {}
        machines.become("here", server.address, **options)
        module = slow_module()
        if way == "grad":
            # The first call learns that results have no graph, though weights could have one.
            module.requires_grad_(True)
            module.forward = torch.no_grad()(module.forward)  # type: ignore[method-assign]
        server.forget_calls()
        modcache.lookup_or_run(module, torch.ones(64, 8), [f"k{i}" for i in range(64)], scope="s")
        modcache.flush()
        assert modcache.stats()["stored"] == (0 if way == "min_run_us" else 64)
        assert server.calls().get("mget", 0) <= 8
