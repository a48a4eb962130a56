# SPDX-License-Identifier: Apache-2.0
"""C++ hosts on several machines that share a cluster: what one of them ran, the others find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_cluster import RedisCluster
from running import RunningServer

Start = Callable[..., RunningServer]
RUN_MS = 20
LONG_RUN_MS = 200
PATIENT = ("--set", "remote_timeout_ms=5000")
KEYS = 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster") / "c", replicas=0) as cluster:
        yield cluster


@pytest.mark.parametrize("form", ["scripted", "frozen", "plain"])
def test_another_machine_answers_without_running_the_model(
    start: Start, cluster: RedisCluster, tmp_path: Path, form: str
) -> None:
    shared = ("--set", f"remote={cluster.address}", "--set", "admission=all", *PATIENT)
    first = start(*shared, form=form, run_ms=LONG_RUN_MS, dir=tmp_path / f"first-{form}")
    expected = [first.predict(number, f"{form}-{number}") for number in range(KEYS)]
    assert first.counted() == (0, KEYS, 0)
    assert first.stop() == 0

    second = start(*shared, form=form, run_ms=LONG_RUN_MS, dir=tmp_path / f"second-{form}")
    assert [second.predict(number, f"{form}-{number}") for number in range(KEYS)] == expected
    assert second.counted() == (KEYS, 0, 0)
    assert second.metrics()['modcache_hits_total{tier="remote"}'] == KEYS


def test_a_cluster_that_dies_costs_no_request(start: Start, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "c", primaries=3, replicas=0) as cluster:
        shared = ("--set", f"remote={cluster.address}", "--set", "admission=all")
        server = start(*shared, run_ms=RUN_MS, dir=tmp_path / "here")
        for number in range(20):
            server.predict(number, number)
        for i in range(3):
            cluster.kill_primary(i)
        for number in range(20, 60):
            server.predict(number, number)
        assert server.counted() == (0, 60, 0)
