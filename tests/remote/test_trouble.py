# SPDX-License-Identifier: Apache-2.0
"""A server that fails, stalls, is full or closed: no call fails, and none waits long for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import modcache
import pytest
import torch
from delayed_port import DelayedPort
from machines import Machines, counted, slow_module
from redis_cluster import RedisCluster
from redis_servers import RedisServer, wait_until, with_replica

TIMEOUT_MS = 300
# A call may take this time beyond its run and one time-out, since the machine may be busy. If each
# of its eight keys waited for a time-out, it would take 2.4 s.
SLACK_S = 1.5
BEAT_S = 0.01


class Load:
    """Threads that call a module with keys from a small set, and compare what they get.

    ``longest_s`` is the longest call so far. ``stall_s`` is the longest time by which a thread that
    only sleeps was late: a machine that does other things, too, takes that from the calls as well.
    """

    def __init__(self, threads: int = 3, keys: int = 40) -> None:
        self.module = slow_module(run_s=0.004)
        self._x = torch.arange(keys * 8, dtype=torch.float32).reshape(keys, 8)
        self._expected = self.module.linear(self._x)
        self._keys = keys
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(threads)]
        self._threads.append(threading.Thread(target=self._beat))
        self.failures: list[str] = []
        self.calls = 0
        self.longest_s = 0.0
        self.stall_s = 0.0
        self.scope = "load"

    def _run(self, number: int) -> None:
        step = number
        while not self._stop.is_set():
            step += 1
            i = step * 7 % self._keys
            started = time.monotonic()
            try:
                if step % 3:
                    got = modcache.lookup_or_run(
                        self.module, self._x[i : i + 1], f"k{i}", scope=self.scope
                    )
                    right = self._expected[i : i + 1]
                else:
                    rows = [(i + k) % self._keys for k in range(8)]
                    got = modcache.lookup_or_run(
                        self.module, self._x[rows], [f"k{k}" for k in rows], scope=self.scope
                    )
                    right = self._expected[rows]
                if not torch.allclose(got, right):
                    self.failures.append(f"wrong output for {i}")
            except Exception as error:  # any failure is what this looks for
                self.failures.append(repr(error))
            self.longest_s = max(self.longest_s, time.monotonic() - started)
            self.calls += 1

    def _beat(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            time.sleep(BEAT_S)
            self.stall_s = max(self.stall_s, time.monotonic() - started - BEAT_S)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        assert self.failures == []
        assert self.calls > 0
        # A call may meet several such stalls: in its run, while it waits, and after it.
        allowed_s = TIMEOUT_MS / 1000 + SLACK_S + 3 * self.stall_s
        assert self.longest_s <= allowed_s, (self.longest_s, self.stall_s)


def without_near_tiers(machines: Machines, address: str) -> None:
    """Every call goes to the server."""
    machines.become("here", address, memory=0, disk=0, remote_timeout_ms=TIMEOUT_MS)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "r", persistent=True) as server:
        yield server


def lines_of(capfd: pytest.CaptureFixture[str], port: int, words: str) -> list[str]:
    """The messages with these words on the server at this port, not on that of a test before."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if f":{port}" in line and words in line]


def hits_again(load: Load, within_s: float = 30) -> None:
    before = counted("hits_remote")
    wait_until(lambda: counted("hits_remote") > before, "hits from the server", within_s)


def test_a_server_that_is_killed_and_started_again(machines: Machines, redis: RedisServer) -> None:
    without_near_tiers(machines, redis.address)
    with Load() as load:
        hits_again(load)
        for _ in range(2):
            redis.kill()
            time.sleep(1)
            redis.restart()
            hits_again(load)
    load.check()


def test_a_server_that_does_not_answer_costs_one_time_out(
    machines: Machines, redis: RedisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    without_near_tiers(machines, redis.address)
    with Load(threads=1) as load:
        hits_again(load)
        redis.stop_answering()
        time.sleep(2.5)
        stalled = load.calls
        wait_until(lambda: load.calls > stalled + 20, "calls run while the server is left alone")
        redis.go_on()
        hits_again(load)
    load.check()
    lines = lines_of(capfd, redis.port, "cannot be used")
    assert len(lines) == 1
    assert "did not answer" in lines[0]


def test_a_server_that_is_not_there(machines: Machines, capfd: pytest.CaptureFixture[str]) -> None:
    without_near_tiers(machines, "redis://user:hunter2@127.0.0.1:1/0")
    with Load() as load:
        time.sleep(1)
    load.check()
    text = capfd.readouterr().err
    assert "redis://user:***@127.0.0.1:1/0" in text
    assert "hunter2" not in text
    assert counted("errors")[0] >= 1


def test_a_full_server_is_read_on(machines: Machines, redis: RedisServer) -> None:
    without_near_tiers(machines, redis.address)
    module = slow_module()
    x = torch.ones(1, 8)
    expected = modcache.lookup_or_run(module, x, "before")
    modcache.flush()
    redis.limit_memory("100kb", "noeviction")
    modcache.reset_stats()
    for i in range(10):
        modcache.lookup_or_run(module, x, f"k{i}")
    modcache.flush()
    stored, dropped, errors = counted("remote_stored", "remote_dropped", "errors")
    assert (stored, dropped >= 10, errors >= 1) == (0, True, True)
    assert torch.equal(modcache.lookup_or_run(module, x, "before"), expected)
    assert counted("hits_remote") == (1,)


def test_a_value_that_cannot_be_replaced_on_a_full_server_is_not_found_again(
    machines: Machines, redis: RedisServer
) -> None:
    without_near_tiers(machines, redis.address)
    module = slow_module()
    first, second = torch.ones(1, 8), torch.full((1, 8), 2.0)
    modcache.lookup_or_run(module, first, "k")
    modcache.flush()
    redis.limit_memory("100kb", "noeviction")
    modcache.lookup_or_run(module, second, "k")
    modcache.flush()
    modcache.reset_stats()
    modcache.configure(match="none")
    got = modcache.lookup_or_run(module, second, "k")
    modcache.configure(match="input")
    torch.testing.assert_close(got, module.linear(second))


def test_a_replica_alone_is_read_and_the_new_primary_written_to(
    machines: Machines, tmp_path: Path
) -> None:
    with with_replica(tmp_path / "pair") as (primary, replica):
        address = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}/0"
        without_near_tiers(machines, address)
        with Load() as load:
            hits_again(load)
            modcache.flush()
            primary.kill()
            hits_again(load)
            replica.promote()
            load.scope = "after"
            hits_again(load, within_s=40)
        load.check()


def test_a_user_who_may_only_read(
    machines: Machines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    allowed = "~* +@read +@connection"
    with RedisServer(tmp_path / "r", user="reader", password="secret", allowed=allowed) as server:
        without_near_tiers(machines, server.address)
        with Load() as load:
            time.sleep(0.5)
        modcache.flush()
        load.check()
        assert counted("remote_stored") == (0,)
    assert "secret" not in capfd.readouterr().err


def test_wrong_credentials_are_told_once(
    machines: Machines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with RedisServer(tmp_path / "r", password="right") as server:
        without_near_tiers(machines, server.address.replace("right", "wrong"))
        with Load() as load:
            time.sleep(1.5)
        load.check()
        lines = lines_of(capfd, server.port, "credentials")
    assert len(lines) == 1
    assert "WRONGPASS" in lines[0]


Spoil = Callable[[DelayedPort], None]


@pytest.mark.parametrize(
    "spoil",
    [
        DelayedPort.black_hole,
        DelayedPort.drip,
        DelayedPort.answer_garbage,
        DelayedPort.answer_http,
        DelayedPort.close_at_once,
        DelayedPort.reset_at_once,
        lambda port: port.cut_answers(100),
        lambda port: port.cut_answers(100, then_silent=True),
    ],
    ids=["black hole", "drip", "garbage", "http", "closes", "resets", "cut", "cut, then silent"],
)
def test_a_server_that_answers_as_none_does(
    machines: Machines, redis: RedisServer, spoil: Spoil
) -> None:
    with DelayedPort("127.0.0.1", redis.port) as port:
        without_near_tiers(machines, redis.address_at(port.port))
        with Load() as load:
            hits_again(load)
            spoil(port)
            time.sleep(2)
            port.forward()
            hits_again(load)
        load.check()


def test_a_cluster_that_fails_over_and_moves_slots(machines: Machines, tmp_path: Path) -> None:
    with RedisCluster(tmp_path / "c") as cluster:
        without_near_tiers(machines, cluster.address)
        with Load() as load:
            hits_again(load)
            cluster.migrate_slots(0, 1, 60)
            hits_again(load)
            cluster.fail_over(1)
            hits_again(load)
            killed = cluster.kill_primary(0)
            cluster.wait_until_failed_over()
            hits_again(load)
            killed.restart()
            stopped = cluster.primary(2)
            stopped.stop_answering()
            time.sleep(2)
            stopped.go_on()
            hits_again(load)
        load.check()


def test_what_somebody_spoiled_is_refused(machines: Machines, redis: RedisServer) -> None:
    module = slow_module()
    x = torch.ones(1, 8)
    without_near_tiers(machines, redis.address)
    expected = modcache.lookup_or_run(module, x, "k")
    modcache.flush()
    (name,) = [name for name in redis.cli("KEYS", "*/e/*").split() if name]
    size = int(redis.cli("STRLEN", name))
    for offset in range(0, size, 7):
        redis.cli("SETRANGE", name, str(offset), "\x01spoiled")
        modcache.reset_stats()
        assert torch.equal(modcache.lookup_or_run(module, x, "k"), expected)
        assert counted("corrupt", "misses") == (1, 1)
        modcache.flush()
        assert torch.equal(modcache.lookup_or_run(module, x, "k"), expected)
        assert counted("hits_remote") == (1,)
    redis.cli("DEL", name)
    redis.cli("LPUSH", name, "a list")
    assert torch.equal(modcache.lookup_or_run(module, x, "k"), expected)
